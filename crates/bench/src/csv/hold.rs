//! Held streams as CSV: one row per sample, by the rules of `csv`.

use super::encode_row;
use crate::report::{HoldResult, HoldSample};

/// The samples, with a first line of column names.
pub(super) fn hold_csv(hold: &HoldResult, interrupted: bool) -> String {
    let mut text = encode_row(&COLUMNS.map(str::to_owned));
    for sample in &hold.samples {
        text += &encode_row(&sample_cells(sample, interrupted));
    }
    text
}

const COLUMNS: [&str; 15] = [
    "seconds",
    "opening",
    "streams",
    "lost",
    "receipts_per_second",
    "server_memory_bytes",
    "kernel_memory_bytes",
    "agents_memory_bytes",
    "load_average",
    "probe_mean_ms",
    "probe_p99_ms",
    "probe_errors",
    "receipt_p50_ms",
    "receipt_p99_ms",
    "interrupted",
];

fn sample_cells(sample: &HoldSample, interrupted: bool) -> [String; 15] {
    let known = |bytes: Option<u64>| bytes.map_or_else(String::new, |bytes| bytes.to_string());
    let ms = |us: Option<u64>| us.map_or_else(String::new, super::format_ms);
    let mean = sample.probe_mean;
    [
        format!("{:.3}", sample.at),
        sample.is_opening.to_string(),
        sample.open.to_string(),
        sample.lost.to_string(),
        format!("{:.1}", sample.receipts_per_second),
        known(sample.server_bytes),
        known(sample.kernel_bytes),
        sample.tool_bytes.to_string(),
        format!("{:.2}", sample.load_average),
        mean.map_or_else(String::new, |us| format!("{:.3}", us / 1000.0)),
        ms(sample.probe_p99),
        sample.probe_errors.to_string(),
        ms(sample.latency_p50),
        ms(sample.latency_p99),
        interrupted.to_string(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::csv::report_csv;
    use crate::report::testing;

    #[test]
    fn held_streams_have_a_row_a_sample() {
        let text = report_csv(&testing::hold());
        assert_eq!(text.matches("\r\n").count(), 1 + 41);
        assert!(text.starts_with("seconds,opening,streams,lost,"));
        assert!(text.contains("\r\n5.000,true,500,0,33.3,"), "{text}");
        assert!(text.contains(",1.900,7.000,0,,,false\r\n"), "{text}");
        assert!(text.ends_with(",1.500,9.400,false\r\n"), "{text}");
    }
}
