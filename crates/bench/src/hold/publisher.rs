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

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use hdrhistogram::{CreationError, Histogram};
use penstock_client::{Client, ClientError};
use penstock_runtime::loops::block_on;

use super::numbered_message::{self, NumberedMessage};
use crate::load::{Address, new_histogram, summarize};
use crate::report::PublishResult;

/// The messages to publish, and the target.
#[derive(Debug, Clone)]
pub struct PublishSpec {
    /// As given, for the report.
    pub target: String,
    /// Where to connect.
    pub address: Address,
    /// The head of the request, without its `Content-Length` and the blank line.
    pub head: String,
    /// The body: `{message}` is replaced by a word without characters to escape.
    pub body: String,
    /// The channel, for the report.
    pub channel: String,
    /// Messages per second.
    pub rate: f64,
    /// For the server to accept one.
    pub timeout: Duration,
}

#[derive(Debug)]
pub(super) struct Publisher {
    shared: Arc<PublisherState>,
    thread: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct PublisherState {
    is_stopped: AtomicBool,
    /// Held for one update at a time.
    counters: Mutex<PublisherCounters>,
}

/// The results so far.
#[derive(Debug)]
struct PublisherCounters {
    published: PublishResult,
    accepting: Histogram<u64>,
    /// The number of the last message that may have been published.
    last: u32,
}

impl Publisher {
    /// Starts publishing messages of a run, the first at once.
    pub(super) fn start(publish: &PublishSpec, run: u32) -> Result<Self, CreationError> {
        let shared = Arc::new(PublisherState {
            is_stopped: AtomicBool::new(false),
            counters: Mutex::new(PublisherCounters {
                published: publish.empty_result(),
                accepting: new_histogram()?,
                last: 0,
            }),
        });
        let (ours, publish) = (Arc::clone(&shared), publish.clone());
        let thread = std::thread::spawn(move || {
            if let Err(error) = block_on(ours.run(&publish, run)) {
                let why = Some(error.to_string());
                ours.with_counters(|done| done.published.first_failure = why);
            }
        });
        Ok(Self {
            shared,
            thread: Some(thread),
        })
    }

    /// Stops publishing; returns the results and the number of the last message.
    pub(super) fn stop(mut self) -> (PublishResult, u32) {
        self.end();
        self.shared.with_counters(|done| {
            let mut published = done.published.clone();
            published.accepting = summarize(&done.accepting);
            (published, done.last)
        })
    }

    fn end(&mut self) {
        self.shared.is_stopped.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.thread().unpark();
            // It ends within a timeout; a panic was printed.
            let _ = thread.join();
        }
    }
}

impl Drop for Publisher {
    fn drop(&mut self) {
        self.end();
    }
}

impl PublisherState {
    async fn run(&self, publish: &PublishSpec, run: u32) {
        let mut client = Client::new(publish.address.clone());
        // The first message reports a failure.
        let _ = client.connect(publish.timeout).await;
        let base = numbered_message::monotonic_micros();
        let (mut turn, mut number) = (0_u64, 1_u32);
        loop {
            let due = base + micros_after(turn, publish.rate);
            if !wait_until(due, &self.is_stopped) {
                return;
            }
            turn += 1;
            let late = numbered_message::monotonic_micros().saturating_sub(due);
            self.with_counters(|done| match late {
                0..=LATE_US => {}
                SKIP_AFTER_US.. => done.published.skipped += 1,
                _ => done.published.late += 1,
            });
            if late >= SKIP_AFTER_US {
                continue;
            }
            let word = NumberedMessage {
                number,
                sent_at: due,
            }
            .encode(run);
            let begun = numbered_message::monotonic_micros();
            // Before it is sent: a stream may receive it before the publisher has the response.
            self.with_counters(|done| done.last = number);
            let request = publish.encode_request(&word);
            let outcome = client.exchange(&request, publish.timeout, MAX_BODY_BYTES);
            let outcome = outcome.await.map(|response| response.status);
            let is_used = self.with_counters(|done| {
                let took = numbered_message::monotonic_micros()
                    .saturating_sub(begun)
                    .max(1);
                done.accepting.saturating_record(took);
                done.record_response(outcome)
            });
            if is_used {
                number = number.saturating_add(1);
            }
        }
    }

    fn with_counters<T>(&self, take: impl FnOnce(&mut PublisherCounters) -> T) -> T {
        // An update is never left half done.
        take(&mut self.counters.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl PublisherCounters {
    /// Records the outcome of a message; returns whether its number is used.
    fn record_response(&mut self, outcome: Result<u16, ClientError>) -> bool {
        let published = &mut self.published;
        let (count, why) = match outcome {
            Ok(200..=299) => {
                published.accepted += 1;
                return true;
            }
            Ok(status) => (&mut published.refused, format!("response status {status}")),
            Err(error @ ClientError::Connect(_)) => (&mut published.refused, error.to_string()),
            // It was interrupted: the outcome of the request is unknown.
            Err(error) => {
                published.uncertain += 1;
                published
                    .first_failure
                    .get_or_insert_with(|| error.to_string());
                return true;
            }
        };
        *count += 1;
        published.first_failure.get_or_insert(why);
        self.last -= 1;
        false
    }
}

impl PublishSpec {
    /// The result before anything is published.
    pub(super) fn empty_result(&self) -> PublishResult {
        PublishResult {
            target: self.target.clone(),
            channel: self.channel.clone(),
            rate: self.rate,
            ..PublishResult::default()
        }
    }

    fn encode_request(&self, word: &str) -> Vec<u8> {
        let body = self.body.replace(MESSAGE_PLACEHOLDER, word);
        format!("{}Content-Length: {}\r\n\r\n{body}", self.head, body.len()).into_bytes()
    }
}

/// More than any server responds with to a message or a probe.
pub(super) const MAX_BODY_BYTES: usize = 64 << 20;

/// The position of the message in a body.
pub(super) const MESSAGE_PLACEHOLDER: &str = "{message}";

/// Microseconds from the first to the `turn`-th moment of a rate.
pub(super) fn micros_after(turn: u64, rate: f64) -> u64 {
    let micros = crate::text::units::to_f64(turn) * 1e6 / rate;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "not negative, and the cast saturates"
    )]
    let micros = micros as u64;
    micros
}

/// Waits until a moment of `monotonic_micros`; false if stopped before.
pub(super) fn wait_until(due: u64, is_over: &AtomicBool) -> bool {
    loop {
        if is_over.load(Ordering::Relaxed) {
            return false;
        }
        let left = due.saturating_sub(numbered_message::monotonic_micros());
        if left == 0 {
            return true;
        }
        std::thread::park_timeout(Duration::from_micros(left.min(STOP_CHECK_US)));
    }
}

/// Microseconds after which a message counts as late, and after which it is not sent.
const LATE_US: u64 = 1_000;
const SKIP_AFTER_US: u64 = 1_000_000;

/// Microseconds within which the end of a wait is noticed.
const STOP_CHECK_US: u64 = 50_000;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_has_the_length_of_its_body() {
        let publish = PublishSpec {
            target: String::new(),
            address: Address::Unix("/nowhere".into()),
            head: "POST / HTTP/1.1\r\n".to_owned(),
            body: "a{message}b".to_owned(),
            channel: String::new(),
            rate: 1.0,
            timeout: Duration::from_secs(1),
        };
        let request = publish.encode_request("word");
        assert_eq!(
            request,
            b"POST / HTTP/1.1\r\nContent-Length: 6\r\n\r\nawordb"
        );
    }

    #[test]
    fn only_what_was_refused_for_sure_is_numbered_again() {
        let mut done = PublisherCounters {
            published: PublishResult::default(),
            accepting: new_histogram().unwrap(),
            last: 0,
        };
        let error = || std::io::Error::other("x");
        let mut number = 1;
        for (outcome, is_used) in [
            (Ok(200), true),
            (Ok(202), true),
            (Ok(403), false),
            (Err(ClientError::Connect(error())), false),
            (Err(ClientError::Io(error())), true),
        ] {
            done.last = number;
            assert_eq!(done.record_response(outcome), is_used);
            number += u32::from(is_used);
            assert_eq!(done.last, number - 1);
        }
        let found = &done.published;
        assert_eq!((found.accepted, found.refused, found.uncertain), (2, 2, 1));
        assert_eq!(found.first_failure.as_deref(), Some("response status 403"));
    }

    #[test]
    fn moments_of_a_rate_are_even() {
        assert_eq!(
            [0, 1, 2, 100].map(|turn| micros_after(turn, 4.0)),
            [0, 250_000, 500_000, 25_000_000]
        );
    }
}
