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
    /// How fast the bodies of the responses of a route are sent, at most. A smaller
    /// `X-Accel-Limit-Rate` of a back end counts. With both rates the smaller one counts.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct ResponseRate
    in "sites.routes.response_rate", "response_rate = { ... } in [[sites.routes]]", "" {
        /// Bytes of each response in a second.
        rate: Option<u64> = None, Rate, default "no bound", example r#""1MiB/s""#, by hand;
        /// Bytes of all responses to a client in a second: they share it in equal parts.
        client_rate: Option<u64> = None, Rate, default "no bound", example r#""5MiB/s""#, by hand;
        /// Bytes that are sent before the rate counts, such as the beginning of a video.
        after: u64 = 0, Size(0);
    }
}
