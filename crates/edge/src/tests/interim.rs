//! Interim responses: ahead of the final one, whole, and only to clients of HTTP/1.1.

use std::pin::Pin;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Waker};

use penstock_exchange::RequestBody;

use super::*;

/// A gate that a handler waits for.
#[derive(Debug, Clone, Default)]
pub(super) struct Gate(Arc<Mutex<(bool, Option<Waker>)>>);

impl Gate {
    pub(super) fn open(&self) {
        let mut inner = self.0.lock().unwrap();
        inner.0 = true;
        if let Some(waker) = inner.1.take() {
            waker.wake();
        }
    }
}

impl Future for Gate {
    type Output = ();

    fn poll(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let mut inner = self.0.lock().unwrap();
        inner.1 = Some(cx.waker().clone());
        if inner.0 {
            Poll::Ready(())
        } else {
            Poll::Pending
        }
    }
}

fn hints(at: usize) -> FieldBlock {
    fields(&[("Link", &format!("</{at}>"))])
}

#[test]
fn an_interim_response_does_not_wait_for_the_final_one() {
    let gate = Gate::default();
    let opened = gate.clone();
    let house = TestEdge::new(vec![route(
        "/",
        handler_fn(move |request| {
            let gate = gate.clone();
            pending(async move {
                request
                    .client_state
                    .push_interim(Status::EARLY_HINTS, hints(1));
                gate.await;
                request
                    .client_state
                    .push_interim(Status::EARLY_HINTS, hints(2));
                Ok(Response::with_text(Status::OK, "text/plain", "done").into())
            })
        }),
    )]);
    let mut client = house.connect();
    client
        .get("/")
        .expect("HTTP/1.1 103 Early Hints\r\nLink: </1>\r\n\r\n");
    opened.open();
    client.expect("HTTP/1.1 103 Early Hints\r\nLink: </2>\r\n\r\n");
    assert_eq!(client.response().1, "done");
    // HTTP/1.0 has none.
    client.send("GET / HTTP/1.0\r\n\r\n");
    let rest = String::from_utf8(client.rest()).unwrap();
    assert!(
        rest.starts_with("HTTP/1.1 200 OK\r\n") && !rest.contains("103"),
        "{rest}"
    );
}

#[test]
fn an_interim_response_of_a_handler_that_answers_at_once_comes_first() {
    let house = TestEdge::new(vec![route(
        "/",
        handler_fn(|request| {
            request
                .client_state
                .push_interim(Status::EARLY_HINTS, hints(1));
            ready(Response::with_text(Status::OK, "text/plain", "done"))
        }),
    )]);
    let mut client = house.connect();
    for _ in 0..2 {
        client
            .get("/")
            .expect("HTTP/1.1 103 Early Hints\r\nLink: </1>\r\n\r\n");
        assert_eq!(client.response().1, "done");
    }
}

/// Leaves interim responses as fast as it is polled, while the client reads nothing.
struct InterimFlood {
    request: Request,
    polls: usize,
    remaining: Arc<AtomicUsize>,
}

impl Future for InterimFlood {
    type Output = ();

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<()> {
        let large = fields(&[("Link", &"x".repeat(60_000))]);
        if self
            .request
            .client_state
            .push_interim(Status::EARLY_HINTS, large)
        {
            self.remaining.fetch_add(1, Ordering::Relaxed);
        }
        self.polls += 1;
        cx.waker().wake_by_ref();
        if self.polls < 1000 {
            Poll::Pending
        } else {
            Poll::Ready(())
        }
    }
}

#[test]
fn interim_responses_that_the_socket_does_not_take_are_bounded_and_stay_whole() {
    let (left, answered) = (Arc::new(AtomicUsize::new(0)), Gate::default());
    let (count, done) = (Arc::clone(&left), answered.clone());
    let house = TestEdge::new(vec![route(
        "/",
        handler_fn(move |request| {
            let (left, answered) = (Arc::clone(&left), answered.clone());
            pending(async move {
                let polls = 0;
                InterimFlood {
                    request,
                    polls,
                    remaining: left,
                }
                .await;
                answered.open();
                Ok(Response::with_text(Status::OK, "text/plain", "done").into())
            })
        }),
    )]);
    let mut client = house.connect();
    client.get("/");
    wait_until("the answer", || done.0.lock().unwrap().0);
    let count = count.load(Ordering::Relaxed);
    assert!((2..1000).contains(&count), "{count} of 1000 were left");
    let interim = format!(
        "HTTP/1.1 103 Early Hints\r\nLink: {}\r\n\r\n",
        "x".repeat(60_000)
    );
    for _ in 0..count {
        client.expect(&interim);
    }
    assert_eq!(client.response().1, "done");
}

#[test]
fn continue_is_sent_at_the_first_read_of_the_body() {
    let house = TestEdge::new(vec![route(
        "/",
        handler_fn(|request| {
            pending(async move {
                request
                    .client_state
                    .push_interim(Status::EARLY_HINTS, hints(1));
                let mut all = Vec::new();
                if let RequestBody::Incoming(mut body) = request.body {
                    while std::future::poll_fn(|cx| body.poll_fill(cx, &mut all)).await? {}
                }
                Ok(Response::with_text(Status::OK, "text/plain", all).into())
            })
        }),
    )]);
    let mut client = house.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    client.expect("HTTP/1.1 103 Early Hints\r\nLink: </1>\r\n\r\n");
    client.expect("HTTP/1.1 100 Continue\r\n\r\n").send("body");
    assert_eq!(client.response().1, "body");
}

#[test]
fn a_prefetched_body_sends_no_continue() {
    let house = TestEdge::new(vec![route(
        "/",
        handler_fn(|request| {
            pending(async move {
                let mut all = Vec::new();
                if let RequestBody::Incoming(mut body) = request.body {
                    let ahead = std::future::poll_fn(|cx| {
                        Poll::Ready(body.poll_prefetch(cx, &mut all).is_pending())
                    });
                    assert!(ahead.await && !body.is_at_end());
                    request
                        .client_state
                        .push_interim(Status::EARLY_HINTS, hints(1));
                    while !body.is_at_end() {
                        std::future::poll_fn(|cx| body.poll_fill(cx, &mut all)).await?;
                    }
                }
                Ok(Response::with_text(Status::OK, "text/plain", all).into())
            })
        }),
    )]);
    let mut client = house.connect();
    client.send("POST / HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n");
    client.expect("HTTP/1.1 103 Early Hints\r\nLink: </1>\r\n\r\n");
    client.expect("HTTP/1.1 100 Continue\r\n\r\n").send("body");
    assert_eq!(client.response().1, "body");
}
