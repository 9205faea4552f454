//! Reading JSON whose parts have places and kinds: what `instruct` and `publish` share.
//!
//! Each function takes one key of an object; a [`Misfit`] says what was expected where, and whoever passes it
//! on puts its own place in front.

use std::fmt;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use serde_json::{Map, Value};

/// A JSON object.
pub(super) type Object = Map<String, Value>;

/// What does not fit, and where it is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Misfit {
    /// Keys and indexes from the outermost in; empty for the whole.
    place: String,
    expected: &'static str,
}

impl Misfit {
    pub(super) fn new(place: &str, expected: &'static str) -> Self {
        Self {
            place: place.to_owned(),
            expected,
        }
    }

    /// The same, seen from the object that has it as `key`.
    pub(super) fn within(mut self, key: &str) -> Self {
        // What is in a list names its index first.
        if !self.place.is_empty() && !self.place.starts_with('[') {
            self.place.insert(0, '.');
        }
        self.place.insert_str(0, key);
        self
    }

    /// The same, seen from the list that has it there.
    pub(super) fn at(self, index: usize) -> Self {
        self.within(&format!("[{index}]"))
    }
}

impl fmt::Display for Misfit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.place.as_str() {
            "" => write!(f, "{} is expected", self.expected),
            place => write!(f, "`{place}`: {} is expected", self.expected),
        }
    }
}

impl std::error::Error for Misfit {}

/// The object that a value is.
pub(super) fn as_object(value: &Value) -> Result<&Object, Misfit> {
    value
        .as_object()
        .ok_or_else(|| Misfit::new("", "an object"))
}

/// A key that may be missing. Null stands for missing, as in every other reader of GRIP.
pub(super) fn get<'v>(object: &'v Object, key: &str) -> Option<&'v Value> {
    object.get(key).filter(|value| !value.is_null())
}

pub(super) fn object<'v>(object: &'v Object, key: &str) -> Result<Option<&'v Object>, Misfit> {
    let value = get(object, key);
    let found = value.map(|value| as_object(value).map_err(|misfit| misfit.within(key)));
    found.transpose()
}

pub(super) fn text<'v>(object: &'v Object, key: &str) -> Result<Option<&'v str>, Misfit> {
    match get(object, key) {
        None => Ok(None),
        Some(Value::String(text)) => Ok(Some(text)),
        Some(_) => Err(Misfit::new(key, "a text")),
    }
}

pub(super) fn flag(object: &Object, key: &str) -> Result<bool, Misfit> {
    match get(object, key) {
        None => Ok(false),
        Some(Value::Bool(flag)) => Ok(*flag),
        Some(_) => Err(Misfit::new(key, "true or false")),
    }
}

pub(super) fn list<'v>(object: &'v Object, key: &str) -> Result<&'v [Value], Misfit> {
    match get(object, key) {
        None => Ok(&[]),
        Some(Value::Array(list)) => Ok(list),
        Some(_) => Err(Misfit::new(key, "a list")),
    }
}

/// A whole number that is not negative.
pub(super) fn number(object: &Object, key: &str) -> Result<Option<u64>, Misfit> {
    let Some(value) = get(object, key) else {
        return Ok(None);
    };
    // Some writers of JSON know only numbers with a fraction.
    let of_fraction = || value.as_f64().filter(|number| number.fract() == 0.0);
    let found = value.as_u64().or_else(|| whole(of_fraction()?));
    let found = found.ok_or_else(|| Misfit::new(key, "a whole number, 0 or more"))?;
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

pub(super) fn texts(object: &Object, key: &str) -> Result<Vec<Box<str>>, Misfit> {
    let elements = list(object, key)?.iter().enumerate();
    let text = |(index, value): (usize, &Value)| match value {
        Value::String(text) => Ok(text.as_str().into()),
        _ => Err(Misfit::new("", "a text").at(index).within(key)),
    };
    elements.map(text).collect()
}

/// Names with values.
pub(super) type Pairs = Vec<(Box<str>, Box<str>)>;

/// An object whose values are texts.
pub(super) fn pairs(from: &Object, key: &str) -> Result<Pairs, Misfit> {
    let Some(pairs) = object(from, key)? else {
        return Ok(Vec::new());
    };
    let pair = |(name, value): (&String, &Value)| match value {
        Value::String(value) => Ok((name.as_str().into(), value.as_str().into())),
        _ => Err(Misfit::new(name, "a text").within(key)),
    };
    pairs.iter().map(pair).collect()
}

/// Bytes, as text or (`-bin` behind the key) in base64; the second one counts where both are there.
pub(super) fn bytes(object: &Object, key: &str) -> Result<Option<Bytes>, Misfit> {
    let coded_key = format!("{key}-bin");
    if let Some(coded) = text(object, &coded_key)? {
        let bytes = STANDARD.decode(coded);
        let bytes = bytes.map_err(|_| Misfit::new(&coded_key, "base64"))?;
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
    fn a_misfit_says_where_it_is() {
        let inner = Misfit::new("content", "a text");
        assert_eq!(inner.to_string(), "`content`: a text is expected");
        let outer = inner.within("http-stream").at(3).within("items");
        assert_eq!(
            outer.to_string(),
            "`items[3].http-stream.content`: a text is expected"
        );
        let root = Misfit::new("", "an object");
        assert_eq!(root.to_string(), "an object is expected");
        assert_eq!(root.at(0).to_string(), "`[0]`: an object is expected");
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
