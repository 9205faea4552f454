//! Publishes numbered messages at a rate while streams are held.
//!
//! The coordinator starts one when all agents expect the messages, and stops it before it asks them
//! to finish. One thread, one connection: messages stay in order.
//!
//! # Invariants
//!
//! - A number is reused only if the server definitely refused it, so that a missing message is one
//!   that was published.
//! - A message carries its intended moment, so that a server that is slow to accept one does not
//!   hide how long the next had to wait.

use bytes::Bytes;
use hdrhistogram::{CreationError, Histogram};
use penstock_client::ClientError;

use super::numbered_message::{NumberedMessage, monotonic_micros};
use super::open_loop::{OpenLoop, OpenLoopSettings, OpenLoopWorkload};
use crate::load::{new_histogram, summarize_histogram};
use crate::report::PublishResult;

/// The messages to publish, and the target.
#[derive(Debug, Clone)]
pub struct PublishSpec {
    /// As given, for the report.
    pub target: String,
    /// Where to publish, and when.
    pub open_loop: OpenLoopSettings,
    /// The head of the request, without its `Content-Length` and the blank line.
    pub head: String,
    /// The body: `{message}` is replaced by a word without characters to escape.
    pub body: String,
    /// The channel, for the report.
    pub channel: String,
}

#[derive(Debug)]
pub(super) struct Publisher(OpenLoop<PublisherCounters>);

/// The results so far.
#[derive(Debug)]
struct PublisherCounters {
    spec: PublishSpec,
    run: u32,
    published: PublishResult,
    accepting: Histogram<u64>,
    /// The number of the last message that may have been published.
    last: u32,
}

impl Publisher {
    /// Starts publishing messages of a run.
    pub(super) fn start(spec: &PublishSpec, run: u32) -> Result<Self, CreationError> {
        let counters = PublisherCounters::new(spec, run)?;
        Ok(Self(OpenLoop::start(spec.open_loop.clone(), 1, counters)))
    }

    /// Stops publishing; returns the results and the number of the last message.
    pub(super) fn stop(mut self) -> (PublishResult, u32) {
        self.0.stop();
        self.0.with_workload(|done| {
            let mut published = done.published.clone();
            published.accepting = summarize_histogram(&done.accepting);
            (published, done.last)
        })
    }
}

impl PublisherCounters {
    fn new(spec: &PublishSpec, run: u32) -> Result<Self, CreationError> {
        Ok(Self {
            spec: spec.clone(),
            run,
            published: spec.empty_result(),
            accepting: new_histogram()?,
            last: 0,
        })
    }
}

impl OpenLoopWorkload for PublisherCounters {
    fn next_request(&mut self, due: u64, late: u64) -> Option<Bytes> {
        match late {
            0..=LATE_US => {}
            SKIP_AFTER_US.. => {
                self.published.skipped += 1;
                return None;
            }
            _ => self.published.late += 1,
        }
        // Before it is sent: a stream may receive it before the publisher has the response.
        self.last = self.last.saturating_add(1);
        let message = NumberedMessage {
            number: self.last,
            sent_at: due,
        };
        Some(self.spec.encode_request(&message.encode(self.run)))
    }

    fn record_response(&mut self, outcome: Result<u16, ClientError>, _due: u64, begun: u64) {
        let took = monotonic_micros().saturating_sub(begun).max(1);
        self.accepting.saturating_record(took);
        let published = &mut self.published;
        let is_refused = matches!(
            &outcome,
            Ok(_) | Err(ClientError::Connect(_) | ClientError::Handshake(_))
        );
        let why = match outcome {
            Ok(200..=299) => {
                published.accepted += 1;
                return;
            }
            Ok(status) => format!("response status {status}"),
            Err(error) => error.to_string(),
        };
        published.first_failure.get_or_insert(why);
        match is_refused {
            true => {
                published.refused += 1;
                self.last -= 1;
            }
            // It was interrupted: the outcome of the request is unknown.
            false => published.uncertain += 1,
        }
    }

    fn record_failure(&mut self, why: String) {
        self.published.first_failure = Some(why);
    }
}

impl PublishSpec {
    /// The result before anything is published.
    pub(super) fn empty_result(&self) -> PublishResult {
        PublishResult {
            target: self.target.clone(),
            channel: self.channel.clone(),
            rate: self.open_loop.rate,
            ..PublishResult::default()
        }
    }

    fn encode_request(&self, word: &str) -> Bytes {
        let body = self.body.replace(MESSAGE_PLACEHOLDER, word);
        format!("{}Content-Length: {}\r\n\r\n{body}", self.head, body.len()).into()
    }
}

/// The position of the message in a body.
pub(super) const MESSAGE_PLACEHOLDER: &str = "{message}";

/// Microseconds after which a message counts as late, and after which it is not sent.
const LATE_US: u64 = 1_000;
const SKIP_AFTER_US: u64 = 1_000_000;

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;
    use crate::load::Address;

    fn spec() -> PublishSpec {
        PublishSpec {
            target: String::new(),
            open_loop: OpenLoopSettings {
                address: Address::Unix("/nowhere".into()),
                tls: None,
                rate: 1.0,
                timeout: Duration::from_secs(1),
            },
            head: "POST / HTTP/1.1\r\n".to_owned(),
            body: "a{message}b".to_owned(),
            channel: String::new(),
        }
    }

    #[test]
    fn a_request_has_the_length_of_its_body() {
        let request = spec().encode_request("word");
        let expected = b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nawordb";
        assert_eq!(&request[..], expected);
    }

    #[test]
    fn only_what_was_refused_for_sure_is_numbered_again() {
        let mut done = PublisherCounters::new(&spec(), 1).unwrap();
        let error = || std::io::Error::other("x");
        let mut last = 0;
        for (outcome, is_used) in [
            (Ok(200), true),
            (Ok(202), true),
            (Ok(403), false),
            (Err(ClientError::Connect(error())), false),
            (Err(ClientError::Handshake(error().into())), false),
            (Err(ClientError::Io(error())), true),
        ] {
            assert!(done.next_request(7, 0).is_some());
            assert_eq!(done.last, last + 1);
            done.record_response(outcome, 7, 7);
            last += u32::from(is_used);
            assert_eq!(done.last, last);
        }
        let found = &done.published;
        assert_eq!((found.accepted, found.refused, found.uncertain), (2, 3, 1));
        assert_eq!(found.first_failure.as_deref(), Some("response status 403"));
    }
}
