//! Numbers of connections in order of measurement, as the command line and scenarios write them.

use std::str::FromStr;

use serde::Deserialize;

/// Connection numbers in order of measurement, each at least 1.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize)]
#[serde(try_from = "StepsValue")]
pub struct ConnectionSteps(pub Vec<u32>);

/// The forms in a scenario.
#[derive(Deserialize)]
#[serde(
    untagged,
    expecting = "expected a number, a list of numbers, or a text such as \"1:500:10\" or \"1:512:x2\""
)]
enum StepsValue {
    One(u32),
    List(Vec<u32>),
    Text(String),
}

/// More points than any reasonable sweep.
const MAX_POINTS: usize = 10_000;

impl ConnectionSteps {
    /// `from`, `from + step`, ... up to `to`.
    ///
    /// # Errors
    /// There are none, or too many.
    pub(crate) fn by_step(from: u32, to: u32, step: u32) -> Result<Self, String> {
        let step = usize::try_from(step.max(1)).unwrap_or(1);
        Self::from_points((from..=to).step_by(step))
    }

    /// `from`, `from * factor`, ... up to `to`.
    ///
    /// # Errors
    /// There are none, or too many.
    pub(crate) fn by_factor(from: u32, to: u32, factor: u32) -> Result<Self, String> {
        let next = |&at: &u32| at.max(1).checked_mul(factor.max(2));
        let all = std::iter::successors(Some(from), next);
        Self::from_points(all.take_while(|&at| at <= to))
    }

    fn from_points(points: impl Iterator<Item = u32>) -> Result<Self, String> {
        let points: Vec<u32> = points.take(MAX_POINTS + 1).collect();
        match points.len() {
            1..=MAX_POINTS if points.contains(&0) => Err("connections are at least 1".to_owned()),
            1..=MAX_POINTS => Ok(Self(points)),
            0 => Err("at least one number of connections".to_owned()),
            _ => Err(format!("at most {MAX_POINTS} numbers of connections")),
        }
    }
}

impl FromStr for ConnectionSteps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a list such as 16,128 or 1:500:10 or 1:512:x2");
        let read = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let parts: Vec<&str> = text.split(':').collect();
        match parts[..] {
            [list] => {
                let points: Vec<u32> = list.split(',').map(read).collect::<Result<_, _>>()?;
                Self::from_points(points.into_iter())
            }
            [from, to, step] => match step.trim().strip_prefix('x') {
                Some(factor) => Self::by_factor(read(from)?, read(to)?, read(factor)?),
                None => Self::by_step(read(from)?, read(to)?, read(step)?),
            },
            _ => Err(wrong()),
        }
    }
}

impl TryFrom<StepsValue> for ConnectionSteps {
    type Error = String;

    fn try_from(value: StepsValue) -> Result<Self, String> {
        match value {
            StepsValue::One(one) => Self::from_points([one].into_iter()),
            StepsValue::List(list) => Self::from_points(list.into_iter()),
            StepsValue::Text(text) => text.parse(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_ladders() {
        for (text, points) in [
            ("16", &[16][..]),
            ("16, 128", &[16, 128]),
            ("1:31:10", &[1, 11, 21, 31]),
            ("1:9:x2", &[1, 2, 4, 8]),
        ] {
            assert_eq!(text.parse::<ConnectionSteps>().unwrap().0, points, "{text}");
        }
        for wrong in ["", "0", "1:2", "a", "5:1:1", "1:2:3:4", "16,"] {
            assert!(wrong.parse::<ConnectionSteps>().is_err(), "{wrong}");
        }
    }
}
