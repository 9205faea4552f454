//! The JSON Schema of the file, for editors.
//!
//! Called by the binary's `config schema`; made from the option table. What must stay true: it
//! accepts whatever the parser accepts; where the parser knows more (names, paths, grammars) the
//! schema says only the type.

use serde_json::{Map, Value, json};

use crate::options::{self, Kind, Opt, Unset};

/// The JSON Schema (2020-12) of the file.
pub fn schema() -> String {
    let mut root = object("");
    if let Value::Object(fields) = &mut root {
        fields.insert(
            "$schema".to_owned(),
            json!("https://json-schema.org/draft/2020-12/schema"),
        );
        fields.insert("title".to_owned(), json!("penstock.toml"));
    }
    format!("{root:#}\n")
}

fn object(section: &str) -> Value {
    let mut properties = Map::new();
    let mut required = Vec::new();
    for option in options::in_section(section) {
        properties.insert(option.key.to_owned(), property(option));
        // `path` may be left out beside `format = "off"`.
        if option.default == Unset::Required && section != "server.access_log" {
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

fn property(option: &Opt) -> Value {
    let mut property = match option.kind {
        Kind::Text(_) | Kind::Path => json!({ "type": "string" }),
        Kind::Texts(_) => texts(),
        Kind::TextOrTexts(_) => json!({ "anyOf": [{ "type": "string" }, texts()] }),
        Kind::TextsOrTables(_, section) => {
            json!({ "type": "array", "items": { "anyOf": [{ "type": "string" }, object(section)] } })
        }
        Kind::ListOrTable(_, section) => json!({ "anyOf": [texts(), object(section)] }),
        Kind::Bool => json!({ "type": "boolean" }),
        Kind::FlagOrWords(words) => json!({ "anyOf": [
            { "type": "boolean" },
            { "type": "array", "items": { "type": "string", "enum": words } },
        ] }),
        Kind::FlagOrWord(words) => json!({ "anyOf": [
            { "type": "boolean" },
            { "type": "string", "enum": words },
        ] }),
        Kind::FlagListOrTable(_, section) => {
            json!({ "anyOf": [{ "type": "boolean" }, texts(), object(section)] })
        }
        Kind::FlagOrTable(section) => {
            json!({ "anyOf": [{ "type": "boolean" }, object(section)] })
        }
        Kind::FlagOrPaths => json!({ "anyOf": [{ "type": "boolean" }, texts()] }),
        Kind::Decimal(min, max) => json!({ "type": "number", "minimum": min, "maximum": max }),
        Kind::Fraction => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        Kind::Count(min, max) => number(min, max),
        Kind::CountOrCounts(min, max) => json!({ "anyOf": [
            number(min, max),
            { "type": "array", "minItems": 1, "items": number(min, max) },
        ] }),
        Kind::Size(min) => json!({ "anyOf": sizes(min) }),
        Kind::SizeOrTable(min, section) => {
            let [text, number] = sizes(min);
            json!({ "anyOf": [text, number, object(section)] })
        }
        Kind::Time(_) => {
            json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*(ms|s|m|h|d)\\s*$" })
        }
        Kind::Rate => {
            json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*([kKMGT]B|[KMGT]iB|B)/s\\s*$" })
        }
        Kind::OneOf(words) => json!({ "type": "string", "enum": words }),
        Kind::Map => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        Kind::Table(section) => object(section),
        Kind::CountOrTable(min, max, section) => {
            json!({ "anyOf": [number(min, max), object(section)] })
        }
        Kind::TextOrTable(_, section) => {
            json!({ "anyOf": [{ "type": "string" }, object(section)] })
        }
        Kind::Named(section) => {
            json!({ "type": "object", "additionalProperties": object(section) })
        }
        Kind::List(section) => json!({ "type": "array", "items": object(section) }),
    };
    property["description"] = json!(option.meaning());
    property
}

fn texts() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn sizes(min: u64) -> [Value; 2] {
    [
        json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*([kKMGT]B|[KMGT]iB|B)?\\s*$" }),
        json!({ "type": "integer", "minimum": min }),
    ]
}

fn number(min: u64, max: u64) -> Value {
    json!({ "type": "integer", "minimum": min, "maximum": max })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn is_json_and_knows_the_ranges() {
        let schema: Value = serde_json::from_str(&schema()).unwrap();
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
        assert_eq!(key["required"], json!(["key"]));
        let history = &schema["properties"]["hub"]["properties"]["history"]["anyOf"];
        assert_eq!(history[0]["minimum"], 0);
    }
}
