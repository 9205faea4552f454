//! Values of a table by their Rust types: flags, numbers, sizes, durations, rates, paths and tables
//! of keys, within the range of their option.
//!
//! Used by the declarations of `model` and by the readers. An absent or wrong value leaves the
//! default in place.
//!
//! # Invariants
//! - A number in a `Config` never needs a check again.
//! - Adding a duration to a clock cannot overflow.

use std::path::PathBuf;
use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::Section;
use crate::findings::LocatedValue;
use crate::options::{OptionKind, OptionRow, SectionDoc};
use crate::units;

/// A type that a key's value can have.
pub(crate) trait OptionValue: Sized {
    /// The value of a key; `None` where it is absent or wrong, which is reported.
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self>;

    /// The value as TOML, for the documentation.
    fn to_toml(&self, kind: &OptionKind) -> String;
}

/// A type with the keys of a table as fields: made by `section!`.
pub(crate) trait Keys {
    /// The table in the documentation.
    const DOC: SectionDoc;

    /// Reads the keys that are not read by hand; a field without a valid key keeps its value.
    fn read_keys(&mut self, table: &Section<'_>);
}

/// Sets a field to a value of its type, or of what its `Option` holds.
pub(crate) fn set<T>(target: &mut T, value: impl Into<T>) {
    *target = value.into();
}

impl<T: Keys + Default> OptionValue for T {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        let table = table.table(key)?;
        let mut value = T::default();
        value.read_keys(&table);
        Some(value)
    }

    fn to_toml(&self, _: &OptionKind) -> String {
        "{}".to_owned()
    }
}

impl<T: OptionValue> OptionValue for Option<T> {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        T::from_key(table, key).map(Some)
    }

    fn to_toml(&self, kind: &OptionKind) -> String {
        self.as_ref()
            .map(|value| value.to_toml(kind))
            .unwrap_or_default()
    }
}

macro_rules! whole_numbers {
    ($($number:ty)+) => {$(
        impl OptionValue for $number {
            fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
                table.whole_number(key)?.try_into().ok()
            }

            fn to_toml(&self, kind: &OptionKind) -> String {
                match (kind.without_table(), u64::try_from(*self)) {
                    (OptionKind::Size(_), Ok(bytes)) => {
                        format!("{:?}", units::format_size(bytes))
                    }
                    (OptionKind::Rate, Ok(bytes)) => format!("\"{}/s\"", units::format_size(bytes)),
                    _ => self.to_string(),
                }
            }
        }
    )+};
}

whole_numbers!(u16 u32 u64 usize);

impl OptionValue for bool {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        let (option, value) = table.option_and_value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            DeValue::String(text) if table.findings.is_expanded(value.span().start) => {
                let flag = text.parse().ok();
                if flag.is_none() {
                    table.report_out_of_range(option, value, option.kind.expected());
                }
                flag
            }
            _ => table.report_wrong_type(option, value),
        }
    }

    fn to_toml(&self, _: &OptionKind) -> String {
        self.to_string()
    }
}

impl OptionValue for f64 {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        let (option, value) = table.option_and_value(key)?;
        let (min, max) = match option.kind {
            OptionKind::Fraction => (0.0, 1.0),
            OptionKind::Decimal(min, max) => (min, max),
            _ => return None,
        };
        let number: Option<Self> = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            // Whole numbers may be written without a point.
            DeValue::Integer(number) => integer(number)
                .and_then(|number| u32::try_from(number).ok())
                .map(Self::from),
            DeValue::String(text) if table.findings.is_expanded(value.span().start) => {
                text.parse().ok()
            }
            _ => return table.report_wrong_type(option, value),
        };
        let within = number.filter(|number| (min..=max).contains(number));
        if within.is_none() {
            table.report_out_of_range(option, value, option.kind.expected());
        }
        within.map(Self::abs)
    }

    fn to_toml(&self, _: &OptionKind) -> String {
        self.to_string()
    }
}

impl OptionValue for Duration {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        let (option, value) = table.option_and_value(key)?;
        let (min, max, max_text) = match option.kind.without_table() {
            OptionKind::Time(min) => (min, MAX_DURATION, "365d"),
            OptionKind::Age => (0, MAX_AGE, "10y"),
            _ => return None,
        };
        let Some(text) = value.get_ref().as_str() else {
            return table.report_wrong_type(option, value);
        };
        match units::parse_duration(text) {
            Some(time) if time > max => {
                table.report_out_of_range(option, value, format!("at most {max_text}"));
            }
            Some(time) if time >= Self::from_millis(min) => return Some(time),
            Some(_) => {
                let least = units::format_duration(min);
                table.report_out_of_range(option, value, format!("at least {least}"));
            }
            None => table.report_invalid(key, &LocatedValue::new(text, value.span().start)),
        }
        None
    }

    fn to_toml(&self, _: &OptionKind) -> String {
        let millis = u64::try_from(self.as_millis()).unwrap_or(u64::MAX);
        match millis {
            0 => "\"0s\"".to_owned(),
            _ if millis.is_multiple_of(3_600_000) => format!("\"{}h\"", millis / 3_600_000),
            300_000.. if millis.is_multiple_of(60_000) => format!("\"{}m\"", millis / 60_000),
            _ => format!("{:?}", units::format_duration(millis)),
        }
    }
}

impl OptionValue for PathBuf {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        table.path(key).map(|path| path.value)
    }

    fn to_toml(&self, _: &OptionKind) -> String {
        format!("{:?}", self.display().to_string())
    }
}

impl OptionValue for String {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        table.text(key).map(|text| text.value.to_owned())
    }

    fn to_toml(&self, _: &OptionKind) -> String {
        format!("{self:?}")
    }
}

impl OptionValue for Vec<String> {
    fn from_key(table: &Section<'_>, key: &'static str) -> Option<Self> {
        let items = table.list(key, |text| Some(text.to_owned()))?;
        Some(items.into_iter().map(|item| item.value).collect())
    }

    fn to_toml(&self, _: &OptionKind) -> String {
        format!("{self:?}")
    }
}

impl Section<'_> {
    /// The value of a key; `None` where it is absent or wrong, which is reported.
    pub(crate) fn get<T: OptionValue>(&self, key: &'static str) -> Option<T> {
        T::from_key(self, key)
    }

    /// The value of a key, into `target` if there is one.
    pub(crate) fn read<T: OptionValue>(&self, key: &'static str, target: &mut T) {
        if let Some(value) = self.get(key) {
            *target = value;
        }
    }

    fn whole_number(&self, key: &str) -> Option<u64> {
        let (option, value) = self.option_and_value(key)?;
        match option.kind.without_table() {
            OptionKind::Size(min) => self.parse_size(option, value, min),
            OptionKind::Rate => self
                .parse_text(key, units::parse_rate)
                .map(|rate| rate.value),
            _ => self.parse_number(option, value),
        }
    }

    fn parse_size(
        &self,
        option: &OptionRow,
        value: &Spanned<DeValue<'_>>,
        min: u64,
    ) -> Option<u64> {
        let size = match value.get_ref() {
            DeValue::String(text) => units::parse_size(text),
            DeValue::Integer(number) => integer(number).and_then(|size| u64::try_from(size).ok()),
            _ => return self.report_wrong_type(option, value),
        };
        let expected = match size.filter(|size| *size <= MAX_SIZE) {
            Some(size) if size >= min => return Some(size),
            Some(_) => format!("at least {}", units::format_size(min)),
            None => option.kind.expected(),
        };
        self.report_out_of_range(option, value, expected);
        None
    }

    pub(super) fn parse_number(
        &self,
        option: &OptionRow,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<u64> {
        let (OptionKind::Number(min, max) | OptionKind::NumberOrNumbers(min, max)) =
            option.kind.without_table()
        else {
            return None;
        };
        let count = match value.get_ref() {
            DeValue::Integer(number) => integer(number).and_then(|count| count.try_into().ok()),
            // A variable stands in a text, and what it stands for is the number.
            DeValue::String(text) if self.findings.is_expanded(value.span().start) => {
                text.parse().ok()
            }
            _ => return self.report_wrong_type(option, value),
        };
        let within = count.filter(|count| (min..=max).contains(count));
        if within.is_none() {
            self.report_out_of_range(option, value, OptionKind::Number(min, max).expected());
        }
        within
    }

    fn report_out_of_range(
        &self,
        option: &OptionRow,
        value: &Spanned<DeValue<'_>>,
        expected: String,
    ) {
        let shown = match value.get_ref() {
            DeValue::String(text) => format!("{text:?}"),
            DeValue::Integer(number) => number.to_string(),
            DeValue::Float(number) => number.to_string(),
            other => other.type_str().to_owned(),
        };
        let problem = format!("`{}` cannot be {shown}: expected {expected}", option.key);
        self.report(value.span().start, problem);
    }
}

fn integer(number: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Longer waits are mistakes, and adding them to a clock must not overflow.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// Clients count it; none is added to a clock here.
const MAX_AGE: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// The most that a file offset can hold.
const MAX_SIZE: u64 = i64::MAX as u64;
