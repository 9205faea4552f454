//! The arguments of `bench hold`: the resulting plans, and the errors.

use clap::Parser;

use super::*;

#[derive(Debug, Parser)]
struct Line {
    #[command(flatten)]
    hold: HoldArguments,
}

fn planned(words: &str) -> Result<HoldPlan, String> {
    let words = ["hold"].into_iter().chain(words.split(' '));
    let line = Line::try_parse_from(words).map_err(|error| error.to_string())?;
    let live = LiveLine::new(true).map_err(|error| error.to_string())?;
    hold_plan(&line.hold, &live, Some(1064))
}

#[test]
fn a_plan_has_what_was_asked_for() {
    let plan = planned(
        "http://127.0.0.1:81/a http://127.0.0.1:82/b -n 2500 --rate 50 --for 10m --heartbeat 15s \
         --probe 127.0.0.1:83/ --publish 127.0.0.1:84/publish/ --channel a\"b -H X:y",
    );
    let plan = plan.unwrap();
    assert_eq!(plan.shares, [834, 833, 833], "1000 streams a process");
    assert_eq!(plan.sources.len(), 3);
    assert!(plan.sources.iter().all(|sources| sources.len() == 1));
    assert_eq!(plan.hold, Duration::from_secs(600));
    assert_eq!(plan.heartbeat, Some(Duration::from_secs(15)));
    let StreamTarget {
        address,
        server_name,
        request,
    } = &plan.stream_targets[1];
    assert!(server_name.is_none());
    assert_eq!(address.port(), 82);
    assert_eq!(
        request,
        "GET /b HTTP/1.1\r\nHost: 127.0.0.1:82\r\nX: y\r\nAccept: text/event-stream\r\n\r\n"
    );
    let probe = plan.probe.unwrap();
    assert_eq!(
        (probe.target.as_str(), probe.open_loop.rate),
        ("127.0.0.1:83/", 100.0)
    );
    let publish = plan.publish.unwrap();
    assert_eq!(
        publish.head,
        "POST /publish/ HTTP/1.1\r\nHost: 127.0.0.1:84\r\nContent-Type: application/json\r\n"
    );
    let body: serde_json::Value = serde_json::from_str(&publish.body).unwrap();
    let item = &body["items"][0];
    assert_eq!(item["channel"], "a\"b");
    assert_eq!(
        item["formats"]["http-stream"]["content"],
        "data: {message}\n\n"
    );
}

#[test]
fn other_hubs_are_published_to_by_a_body_of_their_own() {
    let plan = planned(
        "127.0.0.1:81 --publish 127.0.0.1:81/.well-known/mercure --publish-header A:b \
         --publish-body topic=x&data={message} --heartbeat 0s",
    );
    let plan = plan.unwrap();
    let publish = plan.publish.unwrap();
    assert_eq!(publish.body, "topic=x&data={message}");
    assert!(
        publish
            .head
            .contains("\r\nA: b\r\nContent-Type: application/x-www-form")
    );
    assert_eq!(plan.heartbeat, None);
}

#[test]
fn what_cannot_work_is_refused_with_what_to_change() {
    for (words, why) in [
        ("unix:/run/a.sock", "streams are held over TCP"),
        ("127.0.0.1:81 -n 2500 --agents 2", "need 3 agents"),
        ("127.0.0.1:81 -n 5000000", "raise the limit of descriptors"),
        (
            "127.0.0.1:81 --from 10.0.0.x",
            "--from: `10.0.0.x` is not an address",
        ),
        (
            "127.0.0.1:81 --from ::1",
            "--from: ::1 cannot connect to 127.0.0.1:81",
        ),
        (
            "127.0.0.1:81 --from 127.0.0.1 -n 1000000 --agents 1000",
            "--from: 1000000 streams need",
        ),
        (
            "127.0.0.1:81 --publish 127.0.0.1:81 --publish-body x",
            "no {message} in it",
        ),
        ("127.0.0.1:81 --server-pid 4294967295", "no such process"),
        (
            "127.0.0.1:81 --server-match nobody/has/this/in/its/line",
            "no process has",
        ),
        ("127.0.0.1:81 --for 5d", "at most 4 days"),
        ("127.0.0.1:81 --rate 0", "a rate is more than 0"),
    ] {
        let found = planned(words).expect_err(words);
        assert!(found.contains(why), "{words}: {found}");
    }
    let too_few = streams_per_agent(10, None, Some(64)).unwrap_err();
    assert!(too_few.contains("ulimit -n"), "{too_few}");
}
