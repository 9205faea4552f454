//! Long polls: answered once, by a message, a time-out or a hint.

use super::*;
use crate::{LongPollAction, LongPollResponse, MessageFilter};
use penstock_http::{FieldBlock, Status};

fn response(channel: &str, body: &str) -> Publication {
    Publication {
        channel: channel.into(),
        response: Some(LongPollAction::Send(Box::new(LongPollResponse {
            status: Status::OK,
            fields: FieldBlock::default(),
            body: Content {
                bytes: Bytes::copy_from_slice(body.as_bytes()),
                filters: Vec::new(),
            },
            is_patch: false,
        }))),
        ..Publication::default()
    }
}

fn part(channel: &str, part: LongPollAction) -> Publication {
    Publication {
        channel: channel.into(),
        response: Some(part),
        ..Publication::default()
    }
}

fn poll(channels: &[&str]) -> LongPoll {
    let channels = channels.iter();
    LongPoll {
        client: None,
        subscriptions: channels.map(|&channel| subscription(channel)).collect(),
        timeout: TEST_TIMEOUT,
        subscriber_meta: Vec::new(),
    }
}

fn body(outcome: LongPollOutcome) -> String {
    match outcome {
        LongPollOutcome::Message(response) => {
            String::from_utf8(response.body.bytes.to_vec()).unwrap()
        }
        other => format!("{other:?}"),
    }
}

#[test]
fn the_first_message_of_any_channel_answers() {
    let rig = HubHarness::new(settings());
    let first = rig.hub.long_poll(poll(&["a", "b"])).unwrap();
    let second = rig.hub.long_poll(poll(&["b"])).unwrap();
    assert_eq!(
        (rig.hub.snapshot().long_polls, rig.hub.subscriber_count("b")),
        (2, 2)
    );
    rig.hub.publish(message("b", "for streams")).unwrap();
    rig.hub.publish(response("b", "one")).unwrap();
    rig.hub.publish(response("a", "two")).unwrap();
    rig.hub.publish(response("b", "three")).unwrap();
    assert_eq!(body(rig.run(first)), "one");
    assert_eq!(body(rig.run(second)), "one");
    let counts = rig.hub.snapshot();
    assert_eq!(
        (
            counts.long_polls,
            counts.channels.used,
            counts.counters.delivered
        ),
        (0, 0, 2)
    );
}

#[test]
fn a_poll_ends_by_its_time_or_its_leaving() {
    let rig = HubHarness::new(settings());
    let timed = LongPoll {
        timeout: Duration::from_millis(20),
        ..poll(&["a"])
    };
    let waiting = rig.hub.long_poll(timed).unwrap();
    assert_eq!(body(rig.run(waiting)), "TimedOut");
    drop(rig.hub.long_poll(poll(&["a", "b"])).unwrap());
    let counts = rig.hub.snapshot();
    assert_eq!((counts.long_polls, counts.channels.used), (0, 0));
}

#[test]
fn hints_closes_and_missed_messages_repeat_the_request() {
    let rig = HubHarness::new(with_history(10));
    let waiting = rig.hub.long_poll(poll(&["a"])).unwrap();
    rig.hub.publish(part("a", LongPollAction::Hint)).unwrap();
    let id = rig.hub.last_message_id("a").unwrap();
    let LongPollOutcome::RepeatRequest(ids) = rig.run(waiting) else {
        panic!("a hint asks again");
    };
    assert_eq!(ids, [("a".into(), id.clone())]);
    let waiting = rig.hub.long_poll(poll(&["a"])).unwrap();
    rig.hub.publish(part("a", LongPollAction::Close)).unwrap();
    assert_eq!(body(rig.run(waiting)), "Close");
    let last = rig.hub.last_message_id("a").unwrap();
    let knowing = |prev_id: &Arc<str>| LongPoll {
        subscriptions: vec![Subscription {
            prev_id: Some(prev_id.clone()),
            ..subscription("a")
        }],
        ..poll(&[])
    };
    let waiting = rig.hub.long_poll(knowing(&id)).unwrap();
    assert!(
        body(rig.run(waiting)).starts_with("RepeatRequest"),
        "the channel has newer messages"
    );
    let waiting = rig.hub.long_poll(knowing(&last)).unwrap();
    rig.hub.publish(response("a", "next")).unwrap();
    assert_eq!(body(rig.run(waiting)), "next");
}

#[test]
fn filters_keep_a_poll_waiting_or_change_its_body() {
    let rig = HubHarness::new(settings());
    let of_ann = |filters: &[MessageFilter]| LongPoll {
        subscriptions: vec![Subscription {
            filters: filters.to_vec(),
            ..subscription("a")
        }],
        subscriber_meta: vec![("user".into(), "ann".into())],
        ..poll(&[])
    };
    let skips = rig
        .hub
        .long_poll(of_ann(&[MessageFilter::SkipSelf]))
        .unwrap();
    let changes = rig
        .hub
        .long_poll(of_ann(&[MessageFilter::VarSubst]))
        .unwrap();
    let by_ann = Publication {
        meta: vec![("sender".into(), "ann".into())],
        ..response("a", "hi %(user)s")
    };
    rig.hub.publish(by_ann).unwrap();
    assert_eq!(body(rig.run(changes)), "hi ann");
    rig.hub.publish(response("a", "by others")).unwrap();
    assert_eq!(body(rig.run(skips)), "by others");
}

#[test]
fn very_many_are_answered_in_pieces_and_drained_in_time() {
    let rig = HubHarness::new(settings());
    let polls: Vec<_> = (0..1_000)
        .map(|_| rig.hub.long_poll(poll(&["a"])).unwrap())
        .collect();
    rig.hub.publish(response("a", "to all")).unwrap();
    rig.run(async move {
        for waiting in polls {
            assert_eq!(body(waiting.await), "to all");
        }
    });
    assert_eq!(rig.hub.snapshot().counters.delivered, 1_000);
    let waiting = rig.hub.long_poll(poll(&["a"])).unwrap();
    let hub = rig.hub.clone();
    let outcome = rig.run(async move {
        let (outcome, ()) = tokio::join!(
            waiting,
            hub.drain(DrainPlan::with_duration(Duration::from_millis(50)))
        );
        outcome
    });
    assert_eq!(body(outcome), "TimedOut");
}
