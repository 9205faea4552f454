//! Requests and their copies over two back ends, one of which may hang.

use std::collections::VecDeque;
use std::sync::Mutex;
use std::task::{Context, Poll, Waker};

use penstock_exchange::{IncomingBody, Response};
use penstock_http::Status;
use penstock_runtime::loops::{block_on, yield_now};

use super::*;
use crate::testing::{NamedBackEnd, request_of};

/// The marks and the bodies of requests.
type SeenBodies = Arc<Mutex<Vec<(String, Vec<u8>)>>>;

/// Reads the bodies of its requests and answers; or, if it is stuck, never does.
#[derive(Debug, Default)]
struct Reader {
    is_stuck: bool,
    bodies: SeenBodies,
}

impl Handler for Reader {
    fn handle(&self, request: Request) -> HandlerProgress {
        let (bodies, is_stuck) = (Arc::clone(&self.bodies), self.is_stuck);
        HandlerProgress::Pending(Box::pin(async move {
            let mark = request.head.field("x-mirror").unwrap_or_default();
            let mark = String::from_utf8(mark.to_vec()).unwrap();
            let body = request.body.read_limited(1 << 20).await?.unwrap();
            bodies.lock().unwrap().push((mark, body));
            if is_stuck {
                std::future::pending::<()>().await;
            }
            Ok(Reply::from(Response::new(Status::OK, Body::Empty)))
        }))
    }
}

/// A body that comes in pieces.
struct Pieces(VecDeque<&'static str>, Option<u64>);

impl IncomingBody for Pieces {
    fn poll_fill(&mut self, _: &mut Context<'_>, into: &mut Vec<u8>) -> Poll<Result<bool, Fault>> {
        let piece = self.0.pop_front();
        into.extend_from_slice(piece.unwrap_or_default().as_bytes());
        Poll::Ready(Ok(piece.is_some()))
    }

    fn length(&self) -> Option<u64> {
        self.1
    }
}

struct Fixture {
    mirror: MirrorHandler,
    bodies: SeenBodies,
    originals: SeenBodies,
}

impl Fixture {
    fn new(is_stuck: bool, change: impl FnOnce(&mut Mirror)) -> Self {
        let mut rule = Mirror {
            max_body_size: 8,
            ..Mirror::default()
        };
        change(&mut rule);
        let target = Reader {
            is_stuck,
            ..Reader::default()
        };
        let original = Reader::default();
        let (bodies, originals) = (Arc::clone(&target.bodies), Arc::clone(&original.bodies));
        let table = RuleCountTable::default();
        let place = (&table, "* /*");
        let mirror = MirrorHandler::new(Arc::new(original), &rule, Arc::new(target), place);
        Self {
            mirror,
            bodies,
            originals,
        }
    }

    async fn post(&self, fields: &str, pieces: &[&'static str], length: Option<u64>) {
        let mut request = request_of("POST /a", fields, "192.0.2.7:1", "http");
        if !pieces.is_empty() {
            let pieces = pieces.iter().copied().collect();
            request.body = RequestBody::Incoming(Box::new(Pieces(pieces, length)));
        }
        let reply = self.mirror.handle(request).wait_for_reply().await;
        assert!(matches!(reply, Ok(Reply::Response(_))), "{reply:?}");
    }

    fn counts(&self) -> [u64; 5] {
        std::array::from_fn(|outcome| self.mirror.target.counts.value(outcome))
    }

    async fn wait_counts(&self, expected: [u64; 5]) {
        let deadline = clock::now() + Duration::from_secs(10);
        while self.counts() != expected {
            assert!(
                clock::now() < deadline,
                "{:?}, not {expected:?}",
                self.counts()
            );
            yield_now().await;
        }
    }
}

#[test]
fn copies_are_marked_and_have_the_whole_body() {
    block_on(async {
        let fixture = Fixture::new(false, |_| {});
        fixture.post("X-Mirror: 7\r\n", &[], None).await;
        fixture.post("", &["abc", "def"], None).await;
        fixture.wait_counts([2, 0, 0, 0, 0]).await;
        let copied = |mark: &str, body: &str| (mark.to_owned(), body.as_bytes().to_vec());
        let expected = |mark| [copied(mark, ""), copied(mark, "abcdef")];
        assert_eq!(*fixture.bodies.lock().unwrap(), expected("1"));
        // Clients cannot mark their requests as copies.
        assert_eq!(*fixture.originals.lock().unwrap(), expected(""));
        assert_eq!(fixture.mirror.target.in_use(), 0);
    })
    .unwrap();
}

#[test]
fn long_bodies_and_upgrades_have_no_copy() {
    block_on(async {
        let fixture = Fixture::new(false, |_| {});
        fixture.post("", &["abcdef", "ghi"], None).await;
        fixture.post("", &["abcdefghi"], Some(9)).await;
        fixture.post("", &["abcdefgh"], Some(8)).await;
        fixture
            .post("Connection: upgrade\r\nUpgrade: x\r\n", &[], None)
            .await;
        fixture.wait_counts([1, 0, 0, 2, 0]).await;
        assert_eq!(fixture.originals.lock().unwrap().len(), 4);
    })
    .unwrap();
}

#[test]
fn a_back_end_that_hangs_holds_up_nothing_but_its_copies() {
    block_on(async {
        let fixture = Fixture::new(true, |rule| {
            rule.max_active = 2;
            rule.timeout = Duration::from_millis(50);
        });
        for _ in 0..5 {
            fixture.post("", &[], None).await;
        }
        assert_eq!(fixture.counts(), [0, 0, 3, 0, 0]);
        assert_eq!(fixture.mirror.target.in_use(), 2);
        fixture.wait_counts([0, 2, 3, 0, 0]).await;
        assert_eq!(fixture.mirror.target.in_use(), 0);
    })
    .unwrap();
}

#[test]
fn a_body_that_is_not_read_has_no_copy() {
    block_on(async {
        let unread = NamedBackEnd::new("unread");
        let mut fixture = Fixture::new(false, |_| {});
        fixture.mirror.inner = unread;
        fixture.post("", &["abc"], Some(3)).await;
        assert_eq!(fixture.counts(), [0, 0, 0, 0, 1]);
        // Errors of the client end the copy with the request.
        let mut request = request_of("POST /a", "", "192.0.2.7:1", "http");
        request.body = RequestBody::Incoming(Box::new(Pieces(["abc"].into(), None)));
        let copy = fixture.mirror.begin_copy(&request).unwrap();
        let RequestBody::Incoming(body) = request.body else {
            panic!("it has a body");
        };
        let mut body = CopyingBody::new(body, copy, 8);
        let mut cx = Context::from_waker(Waker::noop());
        assert!(body.poll_fill(&mut cx, &mut Vec::new()).is_ready());
        drop(body);
        assert_eq!(fixture.counts(), [0, 0, 0, 0, 2]);
        assert_eq!(fixture.mirror.target.in_use(), 0);
    })
    .unwrap();
}

#[test]
fn a_share_of_the_requests_is_copied() {
    block_on(async {
        fastrand::seed(3);
        let fixture = Fixture::new(false, |rule| rule.max_active = 100_000);
        let fixture = Fixture {
            mirror: MirrorHandler {
                share: Share::WHOLE / 10,
                ..fixture.mirror
            },
            ..fixture
        };
        let request = || request_of("GET /a", "", "192.0.2.7:1", "http");
        let chosen = (0..5000)
            .filter(|_| fixture.mirror.is_chosen(&request()))
            .count();
        assert!((400..600).contains(&chosen), "{chosen}");
    })
    .unwrap();
}
