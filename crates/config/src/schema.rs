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
    let mut property = match option.kind {
        OptionKind::Text(_) | OptionKind::Path => json!({ "type": "string" }),
        OptionKind::Texts(_) => string_list_schema(),
        OptionKind::TextOrTexts(_) => {
            json!({ "anyOf": [{ "type": "string" }, string_list_schema()] })
        }
        OptionKind::TextsOrTables(_, section) => {
            json!({ "type": "array", "items": { "anyOf": [{ "type": "string" }, object_schema(section)] } })
        }
        OptionKind::ListOrTable(_, section) => {
            json!({ "anyOf": [string_list_schema(), object_schema(section)] })
        }
        OptionKind::Bool => json!({ "type": "boolean" }),
        OptionKind::FlagOrChoices(words) => json!({ "anyOf": [
            { "type": "boolean" },
            { "type": "array", "items": { "type": "string", "enum": words } },
        ] }),
        OptionKind::FlagOrWord(word) => json!({ "anyOf": [
            { "type": "boolean" },
            { "type": "string", "enum": [word] },
        ] }),
        OptionKind::FlagListOrTable(_, section) => {
            json!({ "anyOf": [{ "type": "boolean" }, string_list_schema(), object_schema(section)] })
        }
        OptionKind::FlagOrTable(section) => {
            json!({ "anyOf": [{ "type": "boolean" }, object_schema(section)] })
        }
        OptionKind::FlagOrPaths => {
            json!({ "anyOf": [{ "type": "boolean" }, string_list_schema()] })
        }
        OptionKind::Decimal(min, max) => {
            json!({ "type": "number", "minimum": min, "maximum": max })
        }
        OptionKind::Fraction => json!({ "type": "number", "minimum": 0, "maximum": 1 }),
        OptionKind::Number(min, max) => number_schema(min, max),
        OptionKind::NumberOrNumbers(min, max) => json!({ "anyOf": [
            number_schema(min, max),
            { "type": "array", "minItems": 1, "items": number_schema(min, max) },
        ] }),
        OptionKind::Size(min) => json!({ "anyOf": size_schemas(min) }),
        OptionKind::SizeOrTable(min, section) => {
            let [text, number] = size_schemas(min);
            json!({ "anyOf": [text, number, object_schema(section)] })
        }
        OptionKind::Time(_) => {
            json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*(ms|s|m|h|d)\\s*$" })
        }
        OptionKind::Rate => {
            json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*([kKMGT]B|[KMGT]iB|B)/s\\s*$" })
        }
        OptionKind::Choice(words) => json!({ "type": "string", "enum": words }),
        OptionKind::StringMap => {
            json!({ "type": "object", "additionalProperties": { "type": "string" } })
        }
        OptionKind::Table(section) => object_schema(section),
        OptionKind::NumberOrTable(min, max, section) => {
            json!({ "anyOf": [number_schema(min, max), object_schema(section)] })
        }
        OptionKind::TextOrTable(_, section) => {
            json!({ "anyOf": [{ "type": "string" }, object_schema(section)] })
        }
        OptionKind::NamedTables(section) => {
            json!({ "type": "object", "additionalProperties": object_schema(section) })
        }
        OptionKind::Tables(section) => json!({ "type": "array", "items": object_schema(section) }),
    };
    property["description"] = json!(option.meaning());
    property
}

fn string_list_schema() -> Value {
    json!({ "type": "array", "items": { "type": "string" } })
}

fn size_schemas(min: u64) -> [Value; 2] {
    [
        json!({ "type": "string", "pattern": "^\\s*[0-9]+\\s*([kKMGT]B|[KMGT]iB|B)?\\s*$" }),
        json!({ "type": "integer", "minimum": min }),
    ]
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
        assert_eq!(key["required"], json!(["key"]));
        let history = &schema["properties"]["hub"]["properties"]["history"]["anyOf"];
        assert_eq!(history[0]["minimum"], 0);
    }
}
