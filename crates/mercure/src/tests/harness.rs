//! Loops with a hub and a Mercure route on them, and clients at the other end of socket pairs.

use std::future::Future;
use std::io::Read;
use std::os::unix::net::UnixStream;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use penstock_config::RouteMercure;
use penstock_exchange::{
    Body, Fault, Handler, HandlerProgress, HeldConnectionCounter, HeldConnectionGuard, HeldFraming,
    Reply, Request, Response,
};
use penstock_hub::{Hub, Settings};
use penstock_runtime::EventLoops;
use penstock_sys::net::worker_socket_pair;
use tokio::sync::oneshot;

use crate::tests::fixtures::{publisher_token, request, settings};
use crate::{MercureHandler, MercureHubs};

/// How long anything may take.
const TEST_TIMEOUT: Duration = Duration::from_secs(20);

/// Two loops, a hub, and the Mercure hubs on it.
pub(super) struct MercureHarness {
    loops: Option<EventLoops>,
    pub(super) mercure_hubs: MercureHubs,
    pub(super) hub: Hub,
}

/// A subscriber.
pub(super) struct EventStreamClient {
    socket: UnixStream,
    read: Vec<u8>,
}

/// What a held connection was counted by.
#[derive(Debug)]
struct NoopConnectionCounter;

impl HeldConnectionCounter for NoopConnectionCounter {
    fn release_held_connection(&self) {}
}

impl MercureHarness {
    pub(super) fn new() -> Self {
        Self::with(Settings::default())
    }

    pub(super) fn with(settings: Settings) -> Self {
        let loops = EventLoops::start(2).unwrap();
        let hub = Hub::start(settings, loops.handles()).unwrap();
        Self {
            loops: Some(loops),
            mercure_hubs: MercureHubs::new(hub.clone()),
            hub,
        }
    }

    pub(super) fn default_handler(&self) -> MercureHandler {
        self.mercure_hubs
            .handler_for_route("a", &settings(), crate::tests::fixtures::no_key_sets)
            .unwrap()
    }

    pub(super) fn handler_with(&self, change: impl FnOnce(&mut RouteMercure)) -> MercureHandler {
        let mut settings = settings();
        change(&mut settings);
        self.mercure_hubs
            .handler_for_route("a", &settings, crate::tests::fixtures::no_key_sets)
            .unwrap()
    }

    /// Runs `work` on one of the loops and waits for its result.
    pub(super) fn run_on_loop<T: Send + 'static>(
        &self,
        number: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> T {
        self.spawn_on_loop(number, work).blocking_recv().unwrap()
    }

    pub(super) fn spawn_on_loop<T: Send + 'static>(
        &self,
        number: usize,
        work: impl Future<Output = T> + Send + 'static,
    ) -> oneshot::Receiver<T> {
        let (sender, receiver) = oneshot::channel();
        let work: Pin<Box<dyn Future<Output = T> + Send>> = Box::pin(work);
        let loops = self.loops.as_ref().unwrap();
        loops.handles()[number].spawn(async move {
            // The test may have dropped the receiver.
            let _ = sender.send(work.await);
        });
        receiver
    }

    /// The response to a request.
    pub(super) fn request(
        &self,
        mercure: &MercureHandler,
        request: Request,
    ) -> Result<Response, Fault> {
        self.run_on_loop(0, handle_request(mercure.clone(), request))
    }

    /// Subscribes on a loop.
    pub(super) fn subscribe_on(
        &self,
        number: usize,
        mercure: &MercureHandler,
        query: &str,
        fields: &[&str],
    ) -> (Response, EventStreamClient) {
        let request = request(&format!("GET /.well-known/mercure?{query}"), fields, None);
        let mercure = mercure.clone();
        self.run_on_loop(number, async move {
            let response = handle_request(mercure, request).await.unwrap();
            hold(response)
        })
    }

    pub(super) fn subscribe(&self, mercure: &MercureHandler, query: &str) -> EventStreamClient {
        self.subscribe_on(0, mercure, query, &[]).1
    }

    /// Publishes a form with a token for everything; gives the id.
    pub(super) fn publish(&self, mercure: &MercureHandler, form: &str) -> String {
        let token = format!("Authorization: Bearer {}", publisher_token(&["*"]));
        let response = self.request(mercure, post(&[&token], form)).unwrap();
        assert_eq!(response.status.code(), 200, "{}", text(&response));
        text(&response)
    }
}

impl Drop for MercureHarness {
    fn drop(&mut self) {
        if let Some(loops) = self.loops.take() {
            loops.stop();
        }
    }
}

impl EventStreamClient {
    /// The next events, so many, each as its lines; comments are left out.
    pub(super) fn events(&mut self, count: usize) -> Vec<String> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let events = self.all();
            if events.len() >= count {
                assert_eq!(events.len(), count, "{events:?}");
                self.read.clear();
                return events;
            }
            assert!(self.fill(deadline), "the stream has ended: {events:?}");
        }
    }

    /// The ids of the events up to and with this one.
    pub(super) fn ids_until(&mut self, last: &str) -> Vec<String> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let ids = ids(&self.all());
            if ids.iter().any(|id| id == last) {
                self.read.clear();
                return ids;
            }
            assert!(self.fill(deadline), "the stream has ended: {ids:?}");
        }
    }

    /// The ids of the events up to and with this one, or to the end of the stream.
    pub(super) fn ids_until_end_or(&mut self, last: &str) -> Vec<String> {
        let deadline = Instant::now() + TEST_TIMEOUT;
        loop {
            let ids = ids(&self.all());
            if ids.iter().any(|id| id == last) || !self.fill(deadline) {
                return ids;
            }
        }
    }

    /// Waits for the end of the stream.
    pub(super) fn expect_end(&mut self) {
        let deadline = Instant::now() + TEST_TIMEOUT;
        while self.fill(deadline) {}
    }

    fn all(&self) -> Vec<String> {
        let text = String::from_utf8(self.read.clone()).unwrap();
        let blocks = text.split_inclusive("\n\n");
        blocks
            .filter(|block| block.ends_with("\n\n") && !block.starts_with(':'))
            .map(|block| block.trim_end().to_owned())
            .collect()
    }

    /// Reads some more; `false` at the end.
    fn fill(&mut self, deadline: Instant) -> bool {
        let left = deadline.saturating_duration_since(Instant::now());
        assert!(
            !left.is_zero(),
            "nothing comes: {:?}",
            String::from_utf8_lossy(&self.read)
        );
        self.socket.set_read_timeout(Some(left)).unwrap();
        let mut piece = [0; 4096];
        let size = self.socket.read(&mut piece).unwrap();
        self.read.extend_from_slice(&piece[..size]);
        size > 0
    }
}

/// The ids of events.
pub(super) fn ids(events: &[String]) -> Vec<String> {
    let lines = events.iter().flat_map(|event| event.lines());
    let ids = lines.filter_map(|line| line.strip_prefix("id: "));
    ids.map(str::to_owned).collect()
}

/// What a handler answers.
pub(super) async fn handle_request(
    mercure: MercureHandler,
    request: Request,
) -> Result<Response, Fault> {
    let reply = match mercure.handle(request) {
        HandlerProgress::Ready(reply) => reply?,
        HandlerProgress::Pending(work) => work.await?,
    };
    match reply {
        Reply::Response(response) => Ok(*response),
        other => panic!("passed on: {other:?}"),
    }
}

/// Does what a connection does with such a response: the client reads it at the other end of a
/// pair.
pub(super) fn hold(mut response: Response) -> (Response, EventStreamClient) {
    let body = std::mem::replace(&mut response.body, Body::Empty);
    let Body::Hold(hold) = body else {
        panic!("no stream, but {}: {body:?}", response.status.code());
    };
    let (ours, theirs) = worker_socket_pair().unwrap();
    let place = HeldConnectionGuard::new(Arc::new(NoopConnectionCounter));
    hold.hold(ours.into(), 0, HeldFraming::UntilClose, place);
    let socket = UnixStream::from(theirs);
    socket.set_nonblocking(false).unwrap();
    let read = Vec::new();
    (response, EventStreamClient { socket, read })
}

/// A request that publishes.
pub(super) fn post(fields: &[&str], form: &str) -> Request {
    let mut all = vec!["Content-Type: application/x-www-form-urlencoded"];
    all.extend(fields);
    let length = format!("Content-Length: {}", form.len());
    all.push(&length);
    request("POST /.well-known/mercure", &all, Some(form))
}

/// The body of a short answer.
pub(super) fn text(response: &Response) -> String {
    match &response.body {
        Body::Bytes(bytes) => String::from_utf8(bytes.to_vec()).unwrap(),
        other => panic!("{other:?}"),
    }
}

pub(super) fn field<'a>(response: &'a Response, name: &str) -> Option<&'a str> {
    response
        .fields
        .get(name)
        .map(|value| std::str::from_utf8(value).unwrap())
}

/// Waits until something is so.
pub(super) fn wait_until(what: &str, mut is_so: impl FnMut() -> bool) {
    let deadline = Instant::now() + TEST_TIMEOUT;
    while !is_so() {
        assert!(
            Instant::now() < deadline,
            "{what}: it does not come to that"
        );
        std::thread::yield_now();
    }
}
