//! Reads JSON with errors that name the place: shared by `instructions` and `publish_format`.
//!
//! Each function takes one key of an object. A [`JsonShapeError`] has the place and the expected
//! kind; each caller that passes it on puts its own place in front.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};

/// A JSON object.
pub(super) type Object = Map<String, Value>;

/// What does not fit, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JsonShapeError {
    /// Keys and indexes from the outermost in; empty for the whole.
    path: String,
    expected: &'static str,
}

impl JsonShapeError {
    pub(super) fn new(place: &str, expected: &'static str) -> Self {
        Self {
            path: place.to_owned(),
            expected,
        }
    }

    /// The same, seen from the object that has it as `key`.
    pub(super) fn within_key(mut self, key: &str) -> Self {
        // An item of a list names its index first.
        if !self.path.is_empty() && !self.path.starts_with('[') {
            self.path.insert(0, '.');
        }
        self.path.insert_str(0, key);
        self
    }

    /// The same, seen from the list that has it there.
    pub(super) fn at_index(self, index: usize) -> Self {
        self.within_key(&format!("[{index}]"))
    }
}

impl fmt::Display for JsonShapeError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.path.as_str() {
            "" => write!(f, "{} is expected", self.expected),
            place => write!(f, "`{place}`: {} is expected", self.expected),
        }
    }
}

impl std::error::Error for JsonShapeError {}

/// The object that a value is.
pub(super) fn as_object(value: &Value) -> Result<&Object, JsonShapeError> {
    value
        .as_object()
        .ok_or_else(|| JsonShapeError::new("", "an object"))
}

/// A key that may be missing. Null stands for missing, as in every other reader of GRIP.
pub(super) fn get<'v>(object: &'v Object, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
}

pub(super) fn object<'v>(
    object: &'v Object,
    key: &str,
) -> Result<Option<&'v Object>, JsonShapeError> {
    let value = get(object, key);
    let found = value.map(|value| as_object(value).map_err(|misfit| misfit.within_key(key)));
    found.transpose()
}

pub(super) fn text<'v>(object: &'v Object, key: &str) -> Result<Option<&'v str>, JsonShapeError> {
    match get(object, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(JsonShapeError::new(key, "a text")),
    }
}

pub(super) fn flag(object: &Object, key: &str) -> Result<bool, JsonShapeError> {
    match get(object, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(JsonShapeError::new(key, "true or false")),
    }
}

pub(super) fn list<'v>(object: &'v Object, key: &str) -> Result<&'v [Value], JsonShapeError> {
    match get(object, key) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(JsonShapeError::new(key, "a list")),
    }
}

/// A whole number that is not negative.
pub(super) fn number(object: &Object, key: &str) -> Result<Option<u64>, JsonShapeError> {
    let Some(value) = get(object, key) else {
        return Ok(None);
    };
    // Some writers of JSON know only numbers with a fraction.
    let of_fraction = || value.as_f64().filter(|number| number.fract() == 0.0);
    let found = value.as_u64().or_else(|| whole(of_fraction()?));
    let found = found.ok_or_else(|| JsonShapeError::new(key, "a whole number, 0 or more"))?;
    Ok(Some(found))
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

pub(super) fn texts(object: &Object, key: &str) -> Result<Vec<Box<str>>, JsonShapeError> {
    let elements = list(object, key)?.iter().enumerate();
    let text = |(index, value): (usize, &Value)| match value {
        Value::String(text) => Ok(text.as_str().into()),
        _ => Err(JsonShapeError::new("", "a text")
            .at_index(index)
            .within_key(key)),
    };
    elements.map(text).collect()
}

/// Names with values.
pub(super) type Pairs = Vec<(Box<str>, Box<str>)>;

/// An object with texts as values.
pub(super) fn pairs(from: &Object, key: &str) -> Result<Pairs, JsonShapeError> {
    let Some(pairs) = object(from, key)? else {
        return Ok(Vec::new());
    };
    let pair = |(name, value): (&String, &Value)| match value {
        Value::String(value) => Ok((name.as_str().into(), value.as_str().into())),
        _ => Err(JsonShapeError::new(name, "a text").within_key(key)),
    };
    pairs.iter().map(pair).collect()
}

/// Bytes, as text or (`-bin` behind the key) in base64; the second one counts where both are there.
pub(super) fn bytes(object: &Object, key: &str) -> Result<Option<Bytes>, JsonShapeError> {
    let coded_key = format!("{key}-bin");
    if let Some(coded) = text(object, &coded_key)? {
        let bytes = STANDARD.decode(coded);
        let bytes = bytes.map_err(|_| JsonShapeError::new(&coded_key, "base64"))?;
        return Ok(Some(bytes.into()));
    }
    let plain = text(object, key)?;
    Ok(plain.map(|text| Bytes::copy_from_slice(text.as_bytes())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(value: &Value) -> &Object {
        value.as_object().unwrap()
    }

    #[test]
    fn a_shape_error_names_its_path() {
        let inner = JsonShapeError::new("content", "a text");
        assert_eq!(inner.to_string(), "`content`: a text is expected");
        let outer = inner
            .within_key("http-stream")
            .at_index(3)
            .within_key("items");
        assert_eq!(
            outer.to_string(),
            "`items[3].http-stream.content`: a text is expected"
        );
        let root = JsonShapeError::new("", "an object");
        assert_eq!(root.to_string(), "an object is expected");
        assert_eq!(root.at_index(0).to_string(), "`[0]`: an object is expected");
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
            assert_eq!(number(of(&object), "n").ok().flatten(), expected, "{value}");
        }
        assert_eq!(number(of(&json!({ "n": null })), "n"), Ok(None));
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
            let found = bytes(of(&value), "body").map_err(|misfit| misfit.to_string());
            let found = found.as_ref().map(Option::as_deref).map_err(String::as_str);
            assert_eq!(found, expected, "{value}");
        }
    }
}
