//! The readers of entries, for `fuzz/fuzz_targets`: they are private to this crate, and each is
//! reached here with any bytes.
//!
//! # Invariants
//! - No bytes panic, and no more is kept than was sent.
//! - Accepted input is within the bounds that the hub relies on.

use penstock_hub::fuzzing::check_publication;

use crate::entry::{ChannelName, EntryContent};
use crate::entry_encoding::{decode, encode};

/// Reads `entry` as an entry that another server wrote to Redis.
pub fn read_entry(entry: &[u8]) {
    let channel: ChannelName = "news".into();
    let Ok(what) = decode(&channel, entry) else {
        return;
    };
    let again = encode(&what);
    let read = decode(&channel, &again);
    assert_eq!(
        format!("{:?}", read.expect("what a node writes is read")),
        format!("{what:?}")
    );
    if let EntryContent::Message(publication) = what {
        assert_eq!(publication.channel, channel);
        check_publication(&publication, entry.len());
    }
}

#[cfg(test)]
mod tests {
    use penstock_hub::fuzzing::read_mutated_inputs;

    use super::*;

    #[test]
    fn entries_of_any_bytes_are_written_again_as_they_were() {
        read_mutated_inputs(
            &[
                "{\"v\":1,\"message\":{\"id\":\"a\",\"stream\":{\"send\":{\"bytes\":{\"text\":\"x\"}}},\
                 \"response\":{\"send\":{\"status\":200,\"fields\":[[\"A\",{\"base64\":\"Yg==\"}]],\
                 \"body\":{\"bytes\":{\"text\":\"\"}}}},\"event\":{\"data\":\"d\"},\"meta\":[[\"a\",\"b\"]]}}",
                "{\"v\":1,\"message\":{\"websocket\":{\"close\":{\"code\":1000,\"reason\":\"bye\"}}}}",
                "{\"v\":1,\"gap\":\"everywhere\"}",
            ],
            read_entry,
        );
    }
}
