//! `penstock certificates`: the certificates of a running server as a table or as JSON.
//!
//! Those that need attention come first. The server decides which do (`status`), so that this table,
//! the status page and the metrics agree.

use serde_json::Value;

use super::target::{self, RESPONSE_TIMEOUT};
use super::{ServerLocation, pluralize};

pub(super) fn run(to: &ServerLocation, json: bool) -> Result<String, String> {
    let target = target::locate_read_target(to)?;
    let answer = target.send("GET", "/status.json", "", RESPONSE_TIMEOUT)?;
    let status: Value =
        serde_json::from_str(&answer).map_err(|error| format!("unreadable status: {error}"))?;
    let certificates = &status["certificates"];
    if certificates.is_null() {
        return Err("the server is of a version without HTTPS".to_owned());
    }
    Ok(match json {
        true => certificates.to_string(),
        false => format_table(certificates),
    })
}

/// One row a certificate, and its problem below it.
fn format_table(certificates: &Value) -> String {
    let list = certificates["list"]
        .as_array()
        .map_or(&[][..], Vec::as_slice);
    if list.is_empty() {
        return "no listener has a certificate".to_owned();
    }
    let mut rows = vec![["HOSTS", "STATE", "VALID UNTIL", "SOURCE", "ISSUER"].map(str::to_owned)];
    rows.extend(list.iter().map(format_row));
    let widths: Vec<usize> = (0..4)
        .map(|column| rows.iter().map(|row| row[column].chars().count()).max())
        .map(Option::unwrap_or_default)
        .collect();
    let mut lines = Vec::new();
    let problems = std::iter::once(None).chain(list.iter().map(|it| it["problem"].as_str()));
    for (row, problem) in rows.iter().zip(problems) {
        let [hosts, state, until, source, issuer] = row;
        lines.push(format!(
            "{hosts:0$}  {state:1$}  {until:2$}  {source:3$}  {issuer}",
            widths[0], widths[1], widths[2], widths[3]
        ));
        lines.extend(problem.map(|problem| format!("  {problem}")));
    }
    let total = certificates["total"].as_u64().unwrap_or_default();
    let unlisted = total.saturating_sub(list.len() as u64);
    if unlisted > 0 {
        let more = pluralize(unlisted, "certificate");
        lines.push(format!("and {more} without a problem"));
    }
    lines.join("\n")
}

fn format_row(certificate: &Value) -> [String; 5] {
    let text = |key: &str| certificate[key].as_str().unwrap_or("-").to_owned();
    let hosts: Vec<&str> = certificate["hosts"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(Value::as_str)
        .collect();
    let hosts = match hosts.is_empty() {
        true => "(any)".to_owned(),
        false => hosts.join(", "),
    };
    let until = text("not_after");
    let until = until.split('T').next().unwrap_or_default().to_owned();
    let source = match certificate["path"].as_str() {
        Some(path) => path.to_owned(),
        None => text("source").replace('_', "-"),
    };
    [hosts, text("state"), until, source, text("issuer")]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_row_has_the_problem_below_it() {
        let certificates = json!({ "total": 3, "list": [
            {
                "hosts": ["a.test", "www.a.test"], "state": "invalid", "source": "file",
                "path": "/etc/tls/a.pem", "issuer": "CN=Some Authority",
                "not_after": "2026-11-21T22:08:21Z", "problem": "expired 3 days ago",
            },
            {
                "hosts": [], "state": "valid", "source": "self_signed", "path": null,
                "issuer": "CN=b", "not_after": "2027-02-19T01:20:00Z", "problem": null,
            },
        ] });
        let table = format_table(&certificates);
        assert_eq!(
            table.lines().collect::<Vec<_>>(),
            [
                "HOSTS               STATE    VALID UNTIL  SOURCE          ISSUER",
                "a.test, www.a.test  invalid  2026-11-21   /etc/tls/a.pem  CN=Some Authority",
                "  expired 3 days ago",
                "(any)               valid    2027-02-19   self-signed     CN=b",
                "and 1 certificate without a problem",
            ]
        );
        let none = format_table(&json!({ "total": 0, "list": [] }));
        assert_eq!(none, "no listener has a certificate");
    }
}
