//! How fast the body of a response is sent, at most: by itself, and with the other responses of its
//! client.

use std::fmt;
use std::sync::Arc;

/// The most bytes a second of one body.
#[derive(Debug, Clone)]
pub struct BodyRate {
    /// Of this body alone.
    pub of_response: Option<u64>,
    /// Of this body and others together.
    pub shared: Option<SharedRate>,
    /// Bytes that are sent before a rate counts.
    pub unthrottled: u64,
}

/// A rate that several bodies share in equal parts.
#[derive(Debug, Clone)]
pub struct SharedRate {
    /// Bytes a second of all of them.
    pub bytes_per_second: u64,
    /// How many they are. The body is one of them until this is dropped.
    pub sharers: Arc<dyn RateSharers>,
}

/// The bodies that share a rate.
pub trait RateSharers: fmt::Debug + Send + Sync {
    /// How many are being sent; 1 or more.
    fn count(&self) -> u32;
}

impl BodyRate {
    /// A rate of one body alone.
    #[must_use]
    pub fn of_response(bytes_per_second: u64) -> Self {
        Self {
            of_response: Some(bytes_per_second),
            shared: None,
            unthrottled: 0,
        }
    }

    /// The bytes a second that the body may have now: at least 1, so that it ends one day.
    #[must_use]
    pub fn current(&self) -> u64 {
        let part = self.shared.as_ref().map(|shared| {
            let sharers = u64::from(shared.sharers.count().max(1));
            shared.bytes_per_second / sharers
        });
        let rates = self.of_response.into_iter().chain(part);
        rates.min().unwrap_or(u64::MAX).max(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Fixed(u32);

    impl RateSharers for Fixed {
        fn count(&self) -> u32 {
            self.0
        }
    }

    #[test]
    fn the_smaller_of_the_own_and_the_shared_rate_counts() {
        for (own, sharers, expected) in [
            (None, 1, 1000),
            (None, 4, 250),
            (Some(300), 2, 300),
            (Some(300), 4, 250),
            (None, 5000, 1),
            (None, 0, 1000),
        ] {
            let rate = BodyRate {
                of_response: own,
                shared: Some(SharedRate {
                    bytes_per_second: 1000,
                    sharers: Arc::new(Fixed(sharers)),
                }),
                unthrottled: 0,
            };
            assert_eq!(rate.current(), expected, "{own:?} {sharers}");
        }
        assert_eq!(BodyRate::of_response(7).current(), 7);
    }
}
