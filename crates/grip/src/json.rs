//! Reads JSON with errors that name the place: shared by `instructions` and `publish_format`.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};

/// What does not fit, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonShapeError {
    /// Keys and indexes from the outermost in; empty for the whole.
    path: String,
    expected: &'static str,
}

/// A value of a document.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonNode<'v> {
    value: &'v Value,
    path: JsonPath<'v>,
}

/// An object of a document. Null stands for a missing key, as in every other reader of GRIP.
#[derive(Debug, Clone, Copy)]
pub(super) struct JsonObject<'v> {
    map: &'v Map<String, Value>,
    path: JsonPath<'v>,
}

/// Names with values.
pub(super) type NameValuePairs = Vec<(Box<str>, Box<str>)>;

/// Where a value stands, from the innermost out.
#[derive(Debug, Clone, Copy)]
enum JsonPath<'p> {
    Whole,
    Key(&'p Self, &'p str),
    Index(&'p Self, usize),
}

impl fmt::Display for JsonPath<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Whole => Ok(()),
            Self::Key(Self::Whole, key) => f.write_str(key),
            Self::Key(outer, key) => write!(f, "{outer}.{key}"),
            Self::Index(outer, index) => write!(f, "{outer}[{index}]"),
        }
    }
}

impl fmt::Display for JsonShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{} is expected", self.expected),
            path => write!(f, "`{path}`: {} is expected", self.expected),
        }
    }
}

impl std::error::Error for JsonShapeError {}

impl<'v> JsonNode<'v> {
    /// A whole document.
    pub(super) fn new(value: &'v Value) -> Self {
        Self {
            value,
            path: JsonPath::Whole,
        }
    }

    pub(super) fn value(self) -> &'v Value {
        self.value
    }

    pub(super) fn shape_error(self, expected: &'static str) -> JsonShapeError {
        let path = self.path.to_string();
        JsonShapeError { path, expected }
    }

    pub(super) fn as_object(self) -> Result<JsonObject<'v>, JsonShapeError> {
        let path = self.path;
        let map = self.value.as_object();
        map.map(|map| JsonObject { map, path })
            .ok_or_else(|| self.shape_error("an object"))
    }

    pub(super) fn as_text(self) -> Result<&'v str, JsonShapeError> {
        self.value
            .as_str()
            .ok_or_else(|| self.shape_error("a text"))
    }

    /// Reads each item of a list with `read`.
    pub(super) fn read_items<T, E: From<JsonShapeError>>(
        self,
        mut read: impl FnMut(usize, JsonNode<'_>) -> Result<T, E>,
    ) -> Result<Vec<T>, E> {
        let items = self.value.as_array();
        let items = items.ok_or_else(|| self.shape_error("a list"))?;
        let item = |(index, value)| {
            let path = JsonPath::Index(&self.path, index);
            read(index, JsonNode { value, path })
        };
        items.iter().enumerate().map(item).collect()
    }

    /// Reads each key and value of an object with `read`.
    pub(super) fn read_pairs<T>(
        self,
        mut read: impl FnMut(&str, JsonNode<'_>) -> Result<T, JsonShapeError>,
    ) -> Result<Vec<T>, JsonShapeError> {
        let pair = |(key, value): (&String, &Value)| {
            let path = JsonPath::Key(&self.path, key);
            read(key, JsonNode { value, path })
        };
        self.as_object()?.map.iter().map(pair).collect()
    }
}

impl JsonObject<'_> {
    pub(super) fn get<'a>(&'a self, key: &'a str) -> Option<JsonNode<'a>> {
        let value = self.map.get(key).filter(|value| !value.is_null())?;
        let path = JsonPath::Key(&self.path, key);
        Some(JsonNode { value, path })
    }

    /// The error for a key whose value is missing or of another kind.
    pub(super) fn shape_error_at(&self, key: &str, expected: &'static str) -> JsonShapeError {
        let path = JsonPath::Key(&self.path, key).to_string();
        JsonShapeError { path, expected }
    }

    pub(super) fn get_object<'a>(
        &'a self,
        key: &'a str,
    ) -> Result<Option<JsonObject<'a>>, JsonShapeError> {
        self.get(key).map(JsonNode::as_object).transpose()
    }

    pub(super) fn get_text<'a>(&'a self, key: &'a str) -> Result<Option<&'a str>, JsonShapeError> {
        self.get(key).map(JsonNode::as_text).transpose()
    }

    pub(super) fn get_bool(&self, key: &str) -> Result<bool, JsonShapeError> {
        self.get(key).map_or(Ok(false), |node| {
            let flag = node.value.as_bool();
            flag.ok_or_else(|| node.shape_error("true or false"))
        })
    }

    pub(super) fn get_text_list(&self, key: &str) -> Result<Vec<Box<str>>, JsonShapeError> {
        self.get(key).map_or(Ok(Vec::new()), |list| {
            list.read_items(|_, item| Ok(item.as_text()?.into()))
        })
    }

    /// An object with texts as values.
    pub(super) fn get_pairs(&self, key: &str) -> Result<NameValuePairs, JsonShapeError> {
        self.get(key).map_or(Ok(Vec::new()), |object| {
            object.read_pairs(|name, value| Ok((name.into(), value.as_text()?.into())))
        })
    }

    /// A whole number that is not negative.
    pub(super) fn get_number(&self, key: &str) -> Result<Option<u64>, JsonShapeError> {
        let Some(node) = self.get(key) else {
            return Ok(None);
        };
        // Some writers of JSON know only numbers with a fraction.
        let value = node.value;
        let of_fraction = || value.as_f64().filter(|number| number.fract() == 0.0);
        let found = value.as_u64().or_else(|| whole(of_fraction()?));
        found
            .map(Some)
            .ok_or_else(|| node.shape_error("a whole number, 0 or more"))
    }

    /// Bytes, as text or (`-bin` after the key) in base64, which takes precedence.
    pub(super) fn get_bytes(&self, key: &str) -> Result<Option<Bytes>, JsonShapeError> {
        if let Some(coded) = self.get(&format!("{key}-bin")) {
            let bytes = STANDARD.decode(coded.as_text()?);
            return Ok(Some(bytes.map_err(|_| coded.shape_error("base64"))?.into()));
        }
        let plain = self.get_text(key)?;
        Ok(plain.map(|text| Bytes::copy_from_slice(text.as_bytes())))
    }
}

fn whole(number: f64) -> Option<u64> {
    // Every whole number up to there has a form of its own in 64 bits with a fraction.
    const EXACT_MAX: f64 = 9_007_199_254_740_992.0;
    #[allow(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "in range and without a fraction"
    )]
    (0.0..=EXACT_MAX).contains(&number).then_some(number as u64)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: &Value) -> JsonObject<'_> {
        JsonNode::new(value).as_object().unwrap()
    }

    #[test]
    fn a_shape_error_names_its_path() {
        let value = json!({ "items": [1, { "http-stream": { "content": 7 } }] });
        let whole = of(&value);
        let items = whole.get("items").unwrap();
        let errors = items.read_items(|_, item| {
            let Ok(object) = item.as_object() else {
                return Ok(item.as_object().unwrap_err().to_string());
            };
            let stream = object.get_object("http-stream")?.unwrap();
            Ok::<_, JsonShapeError>(stream.get_text("content").unwrap_err().to_string())
        });
        let expected = [
            "`items[0]`: an object is expected",
            "`items[1].http-stream.content`: a text is expected",
        ];
        assert_eq!(errors.unwrap(), expected);
        let list = json!([1]);
        let root = JsonNode::new(&list);
        let error = root.as_object().unwrap_err().to_string();
        assert_eq!(error, "an object is expected");
        let inner = root.read_items(|_, item| item.as_object().map(drop));
        let error = inner.unwrap_err().to_string();
        assert_eq!(error, "`[0]`: an object is expected");
    }

    #[test]
    fn numbers_are_whole_and_not_negative() {
        for (value, expected) in [
            (json!(7), Some(7)),
            (json!(0), Some(0)),
            (json!(55.0), Some(55)),
            (json!(-1), None),
            (json!(1.5), None),
            (json!(1e300), None),
            (json!("7"), None),
            (json!([]), None),
        ] {
            let object = json!({ "n": value });
            assert_eq!(
                of(&object).get_number("n").ok().flatten(),
                expected,
                "{value}"
            );
        }
        assert_eq!(of(&json!({ "n": null })).get_number("n"), Ok(None));
    }

    #[test]
    fn bytes_come_as_text_or_in_base64() {
        for (value, expected) in [
            (json!({ "body": "a\u{e9}" }), Ok(Some("a\u{e9}".as_bytes()))),
            (json!({ "body-bin": "AP8=" }), Ok(Some(&b"\x00\xff"[..]))),
            (json!({ "body-bin": "YQ==", "body": "b" }), Ok(Some(b"a"))),
            (json!({ "body-bin": "" }), Ok(Some(b""))),
            (json!({}), Ok(None)),
            (json!({ "body": 1 }), Err("`body`: a text is expected")),
            (
                json!({ "body-bin": "b'AA=='" }),
                Err("`body-bin`: base64 is expected"),
            ),
        ] {
            let found = of(&value)
                .get_bytes("body")
                .map_err(|error| error.to_string());
            let found = found.as_ref().map(Option::as_deref).map_err(String::as_str);
            assert_eq!(found, expected, "{value}");
        }
    }
}
