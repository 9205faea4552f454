//! Counts, sizes, durations, rates, fractions and flags out of a table, within the range of their
//! option.
//!
//! The getters of `Section` that fill a target in place: an absent or wrong value leaves the default
//! that stands there. What must stay true: a number in a `Config` never needs a check again, and
//! adding a duration to a clock cannot overflow.

use std::time::Duration;

use toml::Spanned;
use toml::de::DeValue;

use super::Section;
use crate::error::Problem;
use crate::findings::Located;
use crate::options::{OptionKind, OptionRow};
use crate::units;

impl Section<'_> {
    /// A number of the option's range, into `target`.
    pub(crate) fn read_number<T: TryFrom<u64>>(&self, key: &str, target: &mut T) {
        if let Some(count) = self.number(key) {
            *target = count;
        }
    }

    /// A number of the option's range, if there is one.
    pub(crate) fn number<T: TryFrom<u64>>(&self, key: &str) -> Option<T> {
        let (option, value) = self.option_and_value(key)?;
        T::try_from(self.parse_number(option, value)?).ok()
    }

    /// A size, if it says one.
    pub(crate) fn size(&self, key: &str) -> Option<u64> {
        let mut size = u64::MAX;
        self.read_size(key, &mut size);
        (size != u64::MAX).then_some(size)
    }

    /// `true` or `false`, if it says either.
    pub(crate) fn flag(&self, key: &str) -> Option<bool> {
        let (option, value) = self.option_and_value(key)?;
        match value.get_ref() {
            DeValue::Boolean(flag) => Some(*flag),
            _ => self.report_wrong_type(option, value),
        }
    }

    /// `true` or `false`, into `target`.
    pub(crate) fn read_flag(&self, key: &str, target: &mut bool) {
        *target = self.flag(key).unwrap_or(*target);
    }

    /// A number from 0 to 1, into `target`.
    pub(crate) fn read_fraction(&self, key: &str, target: &mut f64) {
        let Some((option, value)) = self.option_and_value(key) else {
            return;
        };
        let number = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            // The ends of the range may be written without a point.
            DeValue::Integer(number) => integer(number).map(|number| match number {
                0 => 0.0,
                1 => 1.0,
                _ => f64::NAN,
            }),
            _ => {
                return self
                    .report_wrong_type::<()>(option, value)
                    .unwrap_or_default();
            }
        };
        match number.filter(|number| (0.0..=1.0).contains(number)) {
            Some(number) => *target = number.abs(),
            None => self.report_out_of_range(option, value, option.kind.expected()),
        }
    }

    /// A number of the option's range that may have digits after the point, if there is one.
    pub(crate) fn decimal_said(&self, key: &str) -> Option<f64> {
        let (option, value) = self.option_and_value(key)?;
        let OptionKind::Decimal(min, max) = option.kind else {
            return None;
        };
        let number = match value.get_ref() {
            DeValue::Float(number) => number.as_str().parse().ok(),
            DeValue::Integer(number) => integer(number)
                .and_then(|number| u32::try_from(number).ok())
                .map(f64::from),
            _ => return self.report_wrong_type(option, value),
        };
        let within = number.filter(|number| (min..=max).contains(number));
        if within.is_none() {
            self.report_out_of_range(option, value, option.kind.expected());
        }
        within
    }

    /// A number of bytes of the option's range, into `target`.
    pub(crate) fn read_size<T: TryFrom<u64>>(&self, key: &str, target: &mut T) {
        let Some((option, value)) = self.option_and_value(key) else {
            return;
        };
        let (OptionKind::Size(min) | OptionKind::SizeOrTable(min, _)) = option.kind else {
            return;
        };
        let size = match value.get_ref() {
            DeValue::String(text) => units::parse_size(text),
            DeValue::Integer(number) => integer(number).and_then(|size| u64::try_from(size).ok()),
            _ => {
                return self
                    .report_wrong_type::<()>(option, value)
                    .unwrap_or_default();
            }
        };
        match size
            .filter(|size| *size <= MAX_SIZE)
            .map(|size| (size, T::try_from(size)))
        {
            Some((size, Ok(fits))) if size >= min => *target = fits,
            Some(_) => {
                self.report_out_of_range(
                    option,
                    value,
                    format!("at least {}", units::format_size(min)),
                );
            }
            None => self.report_out_of_range(option, value, option.kind.expected()),
        }
    }

    /// A duration of the option's range, into `target`.
    pub(crate) fn read_duration(&self, key: &str, target: &mut Duration) {
        *target = self.duration(key).unwrap_or(*target);
    }

    /// A duration of the option's range, if there is one.
    pub(crate) fn duration(&self, key: &str) -> Option<Duration> {
        let (option, value) = self.option_and_value(key)?;
        let OptionKind::Duration(min) = option.kind else {
            return None;
        };
        let Some(text) = value.get_ref().as_str() else {
            return self.report_wrong_type(option, value);
        };
        match units::parse_duration(text) {
            Some(time) if time > MAX_DURATION => {
                self.report_out_of_range(option, value, "at most 365d".to_owned());
            }
            Some(time) if time >= Duration::from_millis(min) => return Some(time),
            Some(_) => {
                let least = units::format_duration(min);
                self.report_out_of_range(option, value, format!("at least {least}"));
            }
            None => self.report_invalid(key, &Located::new(text, value.span().start)),
        }
        None
    }

    /// A rate, in bytes a second, into `target`.
    pub(crate) fn read_rate(&self, key: &str, target: &mut u64) {
        if let Some(rate) = self.parse_text(key, units::parse_rate) {
            *target = rate.value;
        }
    }

    pub(super) fn parse_number(
        &self,
        option: &OptionRow,
        value: &Spanned<DeValue<'_>>,
    ) -> Option<u64> {
        let (OptionKind::Number(min, max)
        | OptionKind::NumberOrTable(min, max, _)
        | OptionKind::NumberOrNumbers(min, max)) = option.kind
        else {
            return None;
        };
        let DeValue::Integer(number) = value.get_ref() else {
            return self.report_wrong_type(option, value);
        };
        let count = integer(number).and_then(|count| u64::try_from(count).ok());
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
        let key = option.key.to_owned();
        self.report(
            value.span().start,
            Problem::OutOfRange {
                key,
                value: shown,
                expected,
            },
        );
    }
}

fn integer(number: &toml::de::DeInteger<'_>) -> Option<i64> {
    i64::from_str_radix(number.as_str(), number.radix()).ok()
}

/// Longer waits are mistakes, and adding them to a clock must not overflow.
pub(crate) const MAX_DURATION: Duration = Duration::from_secs(365 * 24 * 3600);

/// What a file offset can hold.
const MAX_SIZE: u64 = i64::MAX as u64;
