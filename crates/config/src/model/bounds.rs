//! How many requests of a client a route works on at a time, and how fast its responses are sent.

use crate::options::OptionKind::*;
use crate::options::expected::*;
use crate::rate_limit::RateKey;

section! {
    /// How many requests of a route may be in progress at a time, from their head to the last byte of
    /// their response. Others get 429, or 503 where `key` is `"route"`. Streams and upgraded
    /// connections count until the hub or a tunnel has them.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ConcurrencyRule(max: u32)
    in "sites.routes.max_concurrent", "max_concurrent = { ... } in [[sites.routes]]", "" {
        /// So many at a time, in one server.
        max: u32 = max, Number(1, 1_000_000), default required, example "10", by hand;
        /// What is counted, as in `rate_limit`.
        "key" => keys: Vec<RateKey> = vec![RateKey::Client], TextOrTexts(RATE_KEY),
            shows r#""client""#, by hand;
    }
}

section! {
    /// How fast the body of each response of a route is sent, at most. A smaller
    /// `X-Accel-Limit-Rate` of a back end counts.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ResponseRate(rate: u64)
    in "sites.routes.response_rate", "response_rate = { ... } in [[sites.routes]]", "" {
        /// Bytes in a second.
        rate: u64 = rate, Rate, default required, example r#""1MiB/s""#, by hand;
        /// Bytes that are sent before the rate counts, such as the beginning of a video.
        after: u64 = 0, Size(0);
    }
}
