//! Lists of connection numbers, as the command line writes them.

use std::str::FromStr;

/// Connection numbers in order of measurement.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectionSteps(pub(crate) Vec<u32>);

/// More points than any reasonable sweep.
const MAX_POINTS: usize = 100_000;

impl ConnectionSteps {
    /// `from`, `from + step`, ... up to `to`.
    #[must_use]
    pub(crate) fn by_step(from: u32, to: u32, step: u32) -> Self {
        let step = usize::try_from(step.max(1)).unwrap_or(1);
        Self((from..=to).step_by(step).take(MAX_POINTS).collect())
    }

    /// `from`, `from * factor`, ... up to `to`.
    #[must_use]
    pub(crate) fn by_factor(from: u32, to: u32, factor: u32) -> Self {
        let next = |&at: &u32| at.max(1).checked_mul(factor.max(2));
        let all = std::iter::successors(Some(from.max(1)), next);
        Self(all.take_while(|&at| at <= to).collect())
    }
}

impl FromStr for ConnectionSteps {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wrong = || format!("`{text}` is not a list such as 16,128 or 1:500:10 or 1:512:x2");
        let read = |text: &str| text.trim().parse::<u32>().map_err(|_| wrong());
        let parts: Vec<&str> = text.split(':').collect();
        let ladder = match parts[..] {
            [list] => Self(list.split(',').map(read).collect::<Result<_, _>>()?),
            [from, to, step] => match step.trim().strip_prefix('x') {
                Some(factor) => Self::by_factor(read(from)?, read(to)?, read(factor)?),
                None => Self::by_step(read(from)?, read(to)?, read(step)?),
            },
            _ => return Err(wrong()),
        };
        match ladder.0.is_empty() || ladder.0.contains(&0) {
            true => Err(wrong()),
            false => Ok(ladder),
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
