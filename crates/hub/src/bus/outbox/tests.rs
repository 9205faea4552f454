//! Batches, losses and what a Redis gets again that has lost its data.

use super::*;

fn publication(channel: &str, id: usize) -> Publication {
    Publication {
        channel: channel.into(),
        id: Some(id.to_string().into()),
        ..Publication::default()
    }
}

fn filled(outbox: &mut Outbox, now: Instant, count: usize) {
    for id in 0..count {
        outbox.submit(now, publication("a", id), Way::Awaited);
    }
}

/// What a batch says: ids of messages, and gaps with their channels.
fn said(batch: &[Outgoing]) -> Vec<String> {
    let say = |entry: &Outgoing| match &entry.what {
        What::Message(message) => message.id.as_deref().unwrap_or_default().to_owned(),
        other => format!("{other:?} {}", entry.channel),
    };
    batch.iter().map(say).collect()
}

#[test]
fn batches_are_bounded_and_come_one_at_a_time() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, BATCH_MESSAGES + 10);
    let first = outbox.next_batch().unwrap();
    assert_eq!(first.len(), BATCH_MESSAGES);
    assert!(outbox.next_batch().is_none());
    outbox.taken(now, &first);
    let second = outbox.next_batch().unwrap();
    assert_eq!(second.len(), 10);
    let numbers = first.iter().chain(&second).map(|entry| entry.number);
    assert!(numbers.is_sorted());
    outbox.taken(now, &second);
    assert!(outbox.is_empty() && outbox.next_batch().is_none());
}

#[test]
fn large_messages_go_in_small_batches() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    for id in 0..3 {
        let bytes = vec![b'x'; BATCH_BYTES].into();
        let content = Content {
            bytes,
            ..Content::default()
        };
        let stream = Some(StreamPart::Send(content));
        let large = Publication {
            stream,
            ..publication("a", id)
        };
        outbox.submit(now, large, Way::Awaited);
    }
    assert_eq!(outbox.next_batch().unwrap().len(), 1);
}

#[test]
fn what_was_on_its_way_is_sent_again_over_another_connection() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, 3);
    let lost = outbox.next_batch().unwrap();
    outbox.connected(now, true);
    let again = outbox.next_batch().unwrap();
    assert_eq!(said(&again), said(&lost));
    assert_eq!(again[0].number, lost[0].number);
}

#[test]
fn other_data_gets_again_what_was_taken_lately() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, 2);
    let batch = outbox.next_batch().unwrap();
    outbox.taken(now, &batch);
    let later = now + KEPT_FOR / 2;
    outbox.submit(later, publication("a", 2), Way::Awaited);
    let batch = outbox.next_batch().unwrap();
    outbox.taken(later, &batch);
    // The first two are old by now.
    outbox.prune(now + KEPT_FOR, |_, _| false);
    outbox.connected(now + KEPT_FOR, false);
    assert_eq!(said(&outbox.next_batch().unwrap()), ["2"]);
    assert_eq!(outbox.waiting(), 1);
}

#[test]
fn what_is_dropped_before_it_was_taken_becomes_a_gap_in_front() {
    let now = Instant::now();
    let mut outbox = Outbox::bounded(3);
    filled(&mut outbox, now, 3);
    assert!(outbox.is_full_for(&publication("b", 3)));
    for id in 3..5 {
        outbox.submit(now, publication("b", id), Way::Ahead);
    }
    assert_eq!(outbox.dropped(), 2);
    let batch = outbox.next_batch().unwrap();
    assert_eq!(said(&batch), ["Gap a", "2", "3", "4"]);
    assert!(batch.iter().map(|entry| entry.number).is_sorted());
    assert_eq!(batch.iter().filter(|entry| entry.is_ahead).count(), 2);
    outbox.taken(now, &batch);
    assert!(outbox.is_empty());
    // A Redis that forgets the gap forgets where it was.
    outbox.connected(now, false);
    assert_eq!(
        said(&outbox.next_batch().unwrap()),
        ["GapEverywhere ", "2", "3", "4"]
    );
}

#[test]
fn losses_of_too_many_channels_are_a_gap_of_all() {
    let now = Instant::now();
    let mut outbox = Outbox::bounded(1);
    for id in 0..LOST_MAX + 3 {
        outbox.submit(now, publication(&format!("c{id}"), id), Way::Ahead);
    }
    let mut told = Vec::new();
    while let Some(batch) = outbox.next_batch() {
        told.extend(said(&batch));
        outbox.taken(now, &batch);
    }
    assert_eq!(told.len(), LOST_MAX + 2, "{told:?}");
    assert_eq!(
        told[LOST_MAX..],
        ["GapEverywhere ".to_owned(), format!("{}", LOST_MAX + 2)]
    );
}

#[test]
fn who_waits_gets_what_is_not_there_once() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, 2);
    outbox.submit(now, publication("b", 2), Way::Done);
    let first = outbox.next_number() - 3;
    outbox.delivered(first);
    outbox.is_awaited("b");
    let ids = |outbox: &mut Outbox| -> Vec<String> {
        let awaited = outbox.take_awaited().into_iter();
        awaited
            .map(|each| each.publication.id.unwrap().to_string())
            .collect()
    };
    // What came from Redis before it said that it took it is awaited again at worst for another channel.
    assert_eq!(ids(&mut outbox), ["1", "2"]);
    assert!(ids(&mut outbox).is_empty());
    let batch = outbox.next_batch().unwrap();
    let ahead: Vec<bool> = batch.iter().map(|entry| entry.is_ahead).collect();
    assert_eq!(ahead, [false, true, true]);
}

#[test]
fn what_nobody_here_waited_for_is_counted_until_redis_has_it() {
    let now = Instant::now();
    let mut outbox = Outbox::bounded(4);
    for id in 0..3 {
        outbox.submit(now, publication("a", id), Way::Done);
    }
    filled(&mut outbox, now, 1);
    let unheard = |outbox: &Outbox| outbox.unheard.get("a").copied();
    assert_eq!(unheard(&outbox), Some(3));
    outbox.submit(now, publication("b", 4), Way::Ahead);
    assert_eq!(unheard(&outbox), Some(2), "the oldest made room");
    let batch = outbox.next_batch().unwrap();
    outbox.taken(now, &batch);
    assert!(outbox.unheard.is_empty());
    outbox.connected(now, false);
    assert_eq!(unheard(&outbox), Some(2), "it is sent again");
    outbox.is_awaited("a");
    assert!(outbox.unheard.is_empty());
    assert_eq!(outbox.take_awaited().len(), 3);
}
