//! The JSON Schema of the file, for editors.
//!
//! Called by the binary's `config schema`; made from the option table.
//!
//! # Invariants
//! - It accepts whatever the parser accepts.
//! - Where the parser knows more (names, paths, grammars) the schema says only the type.

use serde_json::{Map, Value, json};

use crate::options::{self, OptionDefault, OptionKind, OptionRow};

/// The JSON Schema (2020-12) of the file.
pub fn json_schema() -> String {
    let mut root = object_schema("");
    if let Value::Object(fields) = &mut root {
        fields.insert(
            "$schema".to_owned(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        fields.insert("title".to_owned(), json!("penstock.toml"));
    }
    format!("{root:#}\n")
}

fn object_schema(section: &str) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for option in options::options_in(section) {
        properties.insert(option.key.to_owned(), property_schema(option));
        if matches!(option.default, OptionDefault::Required) {
            required.push(json!(option.key));
        }
    }
    let mut object = json!({
        "type": "object",
        "properties": properties,
        "additionalProperties": false,
    });
    if !required.is_empty() {
        object["required"] = Value::Array(required);
    }
    object
}

fn property_schema(option: &OptionRow) -> Value {
    let mut forms = schemas_of_kind(option.kind);
    let mut property = match forms.len() {
        1 => forms.remove(0),
        _ => json!({ "anyOf": forms }),
    };
    property["description"] = json!(option.full_description());
    property
}

/// The schemas of the forms that a value may have.
fn schemas_of_kind(kind: OptionKind) -> Vec<Value> {
    let string = || json!({ "type": "string" });
    let flag = || json!({ "type": "boolean" });
    let list = |items: Value| json!({ "type": "array", "items": items });
    match kind {
        OptionKind::Text(_) | OptionKind::Path => vec![string()],
        OptionKind::Texts(_) => vec![list(string())],
        OptionKind::TextOrTexts(_) => vec![string(), list(string())],
        OptionKind::TextsOrTables(_, section) => {
            let each = json!({ "anyOf": [string(), object_schema(section)] });
            vec![string(), object_schema(section), list(each)]
        }
        OptionKind::Bool => vec![flag()],
        OptionKind::FlagOrChoices(words) => {
            vec![flag(), list(json!({ "type": "string", "enum": words }))]
        }
        OptionKind::FlagOrWord(word) => vec![flag(), json!({ "type": "string", "enum": [word] })],
        OptionKind::FlagOrTexts(_) | OptionKind::FlagOrPaths => vec![flag(), list(string())],
        OptionKind::OrTable(kind, section) => {
            let mut forms = schemas_of_kind(*kind);
            forms.push(object_schema(section));
            forms
        }
        OptionKind::Decimal(min, max) => {
            vec![json!({ "type": "number", "minimum": min, "maximum": max })]
        }
        OptionKind::Fraction => vec![json!({ "type": "number", "minimum": 0, "maximum": 1 })],
        OptionKind::Number(min, max) => vec![number_schema(min, max)],
        OptionKind::NumberOrNumbers(min, max) => {
            let mut numbers = list(number_schema(min, max));
            numbers["minItems"] = json!(1);
            vec![number_schema(min, max), numbers]
        }
        OptionKind::Size(min) => vec![
            json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*([kKMGT]B|[KMGT]iB|B)?\\s*$" }),
            json!({ "type": "integer", "minimum": min }),
        ],
        OptionKind::Time(_) | OptionKind::Age => {
            vec![json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*(ms|s|m|h|d|w|y)\\s*$" })]
        }
        OptionKind::Rate => {
            let pattern = "^\\s*[0-9]+\\s*([kKMGT]B|[KMGT]iB|B)/s\\s*$";
            vec![json!({ "type": "string", "pattern": pattern })]
        }
        OptionKind::Choice(words) => vec![json!({ "type": "string", "enum": words })],
        OptionKind::StringMap => {
            vec![json!({ "type": "object", "additionalProperties": string() })]
        }
        OptionKind::Table(section) => vec![object_schema(section)],
        OptionKind::TableOrTables(section) => {
            vec![object_schema(section), list(object_schema(section))]
        }
        OptionKind::NamedTables(section) => {
            vec![json!({ "type": "object", "additionalProperties": object_schema(section) })]
        }
        OptionKind::Tables(section) => vec![list(object_schema(section))],
    }
}

fn number_schema(min: u64, max: u64) -> Value {
    json!({ "type": "integer", "minimum": min, "maximum": max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_json_and_knows_the_ranges() {
        let schema: Value = serde_json::from_str(&json_schema()).unwrap();
        let limits = &schema["properties"]["limits"]["properties"];
        assert_eq!(limits["headers"]["minimum"], 1);
        let apps = &schema["properties"]["apps"]["additionalProperties"];
        let kinds = json!(["wsgi", "asgi", "rack", "command", "fastcgi"]);
        assert_eq!(apps["properties"]["kind"]["enum"], kinds);
        let of_app = &apps["properties"]["upstream"]["properties"];
        assert_eq!(of_app["sticky"]["type"], "string");
        assert!(of_app["servers"].is_null());
        let upstreams = &schema["properties"]["upstreams"]["additionalProperties"];
        assert!(upstreams["required"].is_null(), "others may join");
        let join = &schema["properties"]["server"]["properties"]["join"];
        assert_eq!(join["required"], json!(["listen", "key"]));
        assert_eq!(
            schema["properties"]["sites"]["items"]["required"],
            json!(["routes"])
        );
        let route = &schema["properties"]["sites"]["items"]["properties"]["routes"]["items"];
        let cache = &route["properties"]["cache"]["anyOf"];
        assert_eq!(cache[0]["type"], "array");
        assert_eq!(cache[1]["required"], json!(["stores"]));
        let query = &cache[1]["properties"]["key"]["properties"]["query"]["anyOf"];
        assert_eq!(query[0]["type"], "boolean");
        assert_eq!(query[2]["required"], json!(["without"]));
        let files = &route["properties"]["files"]["properties"];
        let codings = json!(["zstd", "br", "gzip"]);
        assert_eq!(files["compress"]["anyOf"][1]["items"]["enum"], codings);
        let hub = &route["properties"]["hub"]["anyOf"];
        assert_eq!(hub[0]["type"], "string");
        assert_eq!(hub[1]["properties"]["channels"]["type"], "array");
        let key = &route["properties"]["mercure"]["properties"]["subscriber_key"]["anyOf"][1];
        assert_eq!(key["properties"]["jwks"]["type"], "string");
        let history = &schema["properties"]["hub"]["properties"]["history"]["anyOf"];
        assert_eq!(history[0]["minimum"], 0);
    }
}
