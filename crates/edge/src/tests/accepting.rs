//! Many newcomers at once.

use std::sync::{OnceLock, mpsc};

use super::*;

#[test]
fn a_rush_of_newcomers_keeps_nobody_waiting_who_is_in() {
    const RUSH: usize = 100;
    let edge: Arc<OnceLock<Arc<Edge>>> = Arc::default();
    let asked = Arc::clone(&edge);
    // Says how many had come when it was asked.
    let count = scripted(move |_| {
        let accepted = asked.get().unwrap().totals().accepted_connections.value();
        now(Response::text(
            Status::OK,
            "text/plain",
            accepted.to_string(),
        ))
    });
    let house = House::new(vec![route("/", count)]);
    edge.set(Arc::clone(&house.edge)).unwrap();
    let mut client = house.client();
    assert_eq!(client.get("/").response().1, "1");
    let (begin, begun) = mpsc::channel();
    let (release, held) = mpsc::channel::<()>();
    house.spawn(async move {
        begin.send(()).unwrap();
        held.recv_timeout(SOON).ok();
    });
    begun.recv_timeout(SOON).unwrap();
    let rush: Vec<_> = (0..RUSH).map(|_| house.client()).collect();
    client.get("/");
    release.send(()).unwrap();
    let accepted: usize = client.response().1.parse().unwrap();
    assert!(accepted <= RUSH / 2, "{accepted} first");
    house.await_connections(1 + rush.len());
}
