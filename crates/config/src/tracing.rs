//! Reads `[tracing]`.

use crate::headers::{is_field_value, is_token};
use crate::model::{SampleShare, TraceConfig};
use crate::redacted::Secret;
use crate::section::{Keys as _, Section};

/// Reads the table; `None` without one.
pub(crate) fn read(top: &Section<'_>) -> Option<TraceConfig> {
    let table = top.table("tracing")?;
    let mut tracing = TraceConfig::default();
    tracing.read_keys(&table);
    if let Some(share) = table.get::<f64>("sample") {
        tracing.sample = SampleShare::from_fraction(share);
    }
    for (name, value) in table.string_map("headers") {
        if !is_token(&name) || !is_field_value(&value.value) {
            let expected = "fields of a request, without line breaks";
            table.report_invalid_secret("headers", value.offset, expected);
            continue;
        }
        tracing.headers.insert(name, Secret::from(value.value));
    }
    Some(tracing)
}

/// Whether a text can name a service.
pub(crate) fn is_service_name(text: &str) -> bool {
    (1..=255).contains(&text.len()) && !text.chars().any(char::is_control)
}

#[cfg(test)]
mod tests {
    use crate::model::TraceParents;
    use crate::testing::TestDir;

    use super::*;

    fn parse(lines: &str) -> Result<Option<TraceConfig>, String> {
        let folder = TestDir::with_sample_site();
        let text = format!("[apps.guestbook]\nkind = \"wsgi\"\n{lines}\n");
        let parsed = crate::parse(&text, &folder.path().join("penstock.toml"));
        parsed
            .map(|it| it.tracing)
            .map_err(|errors| errors.to_string())
    }

    #[test]
    fn a_table_has_a_collector_and_a_share() {
        assert_eq!(parse(""), Ok(None));
        assert_eq!(parse("[tracing]"), Ok(Some(TraceConfig::default())));
        let text = "[tracing]\notlp = \"https://collector:4318/x\"\nsample = 0.05\n\
            parents = \"any\"\nheaders = { Authorization = \"Bearer key\" }";
        let read = parse(text).unwrap().unwrap();
        let url = read.otlp.unwrap();
        assert_eq!(
            (url.is_https, &*url.authority, &*url.target),
            (true, "collector:4318", "/x")
        );
        assert_eq!(read.sample, SampleShare::from_fraction(0.05));
        assert_eq!(read.parents, TraceParents::Any);
        assert_eq!(read.headers["Authorization"].expose(), "Bearer key");
    }

    #[test]
    fn mistakes_are_named_without_secrets() {
        for (line, problem) in [
            ("otlp = \"127.0.0.1:4318\"", "`otlp` cannot be"),
            ("sample = 2", "`sample` cannot be 2"),
            ("parents = \"all\"", "`parents` cannot be"),
            ("service = \"\"", "`service` cannot be"),
            (
                "headers = { A = \"s3cret\\n\" }",
                "`headers` (not shown) cannot be used",
            ),
        ] {
            let errors = parse(&format!("[tracing]\n{line}")).unwrap_err();
            assert!(errors.contains(problem), "{line}: {errors}");
            assert!(!errors.contains("s3cret"), "{errors}");
        }
    }
}
