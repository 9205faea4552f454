//! Messages for the tests of what keeps and sends them.

use std::time::Instant;

use super::Message;
use crate::{Publication, PublishedEvent};

/// The message of this number: its id is the number behind an `m`, its data the number.
pub(crate) fn message(order: u64, at: Instant) -> std::sync::Arc<Message> {
    let publication = Publication {
        channel: "test".into(),
        event: Some(PublishedEvent {
            data: format!("{order:08}").into(),
            ..PublishedEvent::default()
        }),
        ..Publication::default()
    };
    // Ids of one length, so that all cost the same.
    let id = format!("m{order}");
    let mut message = Message::new(order, id.as_str().into(), publication, at);
    message.memory_bytes = 100;
    message.into()
}
