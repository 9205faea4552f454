//! What other nodes wrote: see `crate::fuzzing`.

use super::encoding::{decode, encode};
use super::entry::{ChannelName, EntryContent};
use crate::grip::fuzzing::check_publication;

/// See [`crate::fuzzing::read_entry`].
pub(crate) fn read_entry(entry: &[u8]) {
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
