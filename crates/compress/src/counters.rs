//! What was compressed, as `/status.json` and `/metrics` show it.

use penstock_config::ContentCoding;
use penstock_exchange::metric_table;
use penstock_exchange::metrics::{Counter, MetricValue};
use serde::Serialize;

/// Counters of all routes together.
#[derive(Debug, Default)]
pub(crate) struct CompressionCounters {
    zstd: Counter,
    brotli: Counter,
    gzip: Counter,
    pub(crate) input_bytes: Counter,
    pub(crate) output_bytes: Counter,
    /// Sent without a coding because the memory of encoders was used up.
    pub(crate) skipped: Counter,
}

/// Compressed responses since the start of the server.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct CompressionSnapshot {
    /// Responses in `zstd`.
    pub zstd: u64,
    /// Responses in `br`.
    pub br: u64,
    /// Responses in `gzip`.
    pub gzip: u64,
    /// Bytes of their bodies before.
    pub input_bytes: u64,
    /// Bytes of their bodies behind.
    pub output_bytes: u64,
    /// Responses that were sent without a coding because the memory of encoders was used up.
    pub skipped: u64,
    /// The memory of encoders in use.
    pub memory_bytes: u64,
    /// Its bound.
    pub max_memory_bytes: u64,
}

impl CompressionCounters {
    pub(crate) fn count_response(&self, coding: ContentCoding) {
        let counter = match coding {
            ContentCoding::Zstd => &self.zstd,
            ContentCoding::Brotli => &self.brotli,
            ContentCoding::Gzip => &self.gzip,
        };
        counter.increment();
    }

    pub(crate) fn snapshot(&self, memory_bytes: u64, max_memory_bytes: u64) -> CompressionSnapshot {
        CompressionSnapshot {
            zstd: self.zstd.value(),
            br: self.brotli.value(),
            gzip: self.gzip.value(),
            input_bytes: self.input_bytes.value(),
            output_bytes: self.output_bytes.value(),
            skipped: self.skipped.value(),
            memory_bytes,
            max_memory_bytes,
        }
    }
}

metric_table! {
    /// Metrics of compression.
    pub static COMPRESSION_METRICS: |now: CompressionSnapshot| {
        counter compressed_responses_total = MetricValue::by_label("coding", [
            ("zstd", now.zstd),
            ("br", now.br),
            ("gzip", now.gzip),
        ]), "Responses that were compressed, by coding.";
        counter compression_input_bytes_total = now.input_bytes,
            "Body bytes before compression.";
        counter compression_output_bytes_total = now.output_bytes,
            "Body bytes after compression.";
        counter compression_skipped_total = now.skipped,
            "Responses sent without a coding because the memory of encoders was used up.";
        gauge compression_memory_bytes = now.memory_bytes, "Memory of encoders in use.";
    }
}
