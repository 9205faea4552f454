//! Many newcomers at once.

use std::sync::{OnceLock, mpsc};

use super::*;

#[test]
fn a_rush_of_new_connections_does_not_starve_open_ones() {
    const RUSH: usize = 100;
    let edge: Arc<OnceLock<Arc<Edge>>> = Arc::default();
    let asked = Arc::clone(&edge);
    // Says how many had come when it was asked.
    let count = handler_fn(move |_| {
        let accepted = asked
            .get()
            .unwrap()
            .total_metrics()
            .accepted_connections
            .value();
        ready(Response::with_text(
            Status::OK,
            "text/plain",
            accepted.to_string(),
        ))
    });
    let house = TestEdge::new(vec![route("/", count)]);
    edge.set(Arc::clone(&house.edge)).unwrap();
    let mut client = house.connect();
    assert_eq!(client.get("/").response().1, "1");
    let (begin, begun) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    house.spawn(async move {
        begin.send(()).unwrap();
        held.recv_timeout(TEST_TIMEOUT).ok();
    });
    begun.recv_timeout(TEST_TIMEOUT).unwrap();
    let rush: Vec<_> = (0..RUSH).map(|_| house.connect()).collect();
    client.get("/");
    release.send(()).unwrap();
    let accepted: usize = client.response().1.parse().unwrap();
    assert!(accepted <= RUSH / 2, "{accepted} first");
    house.wait_for_connections(1 + rush.len());
}
