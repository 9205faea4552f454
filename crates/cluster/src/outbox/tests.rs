//! Batches, losses and what a Redis gets again that has lost its data.

use penstock_hub::{Content, StreamAction};

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
        outbox.submit(now, publication("a", id), LocalDelivery::Awaited);
    }
}

/// What a batch says: ids of messages, and gaps with their channels.
fn said(batch: &[OutgoingEntry]) -> Vec<String> {
    let say = |entry: &OutgoingEntry| match &entry.content {
        EntryContent::Message(message) => message.id.as_deref().unwrap_or_default().to_owned(),
        other => format!("{other:?} {}", entry.channel),
    };
    batch.iter().map(say).collect()
}

#[test]
fn batches_are_bounded_and_come_one_at_a_time() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, MAX_BATCH_MESSAGES + 10);
    let first = outbox.next_batch().unwrap();
    assert_eq!(first.len(), MAX_BATCH_MESSAGES);
    assert!(outbox.next_batch().is_none());
    outbox.on_batch_accepted(now, &first);
    let second = outbox.next_batch().unwrap();
    assert_eq!(second.len(), 10);
    let numbers = first.iter().chain(&second).map(|entry| entry.number);
    assert!(numbers.is_sorted());
    outbox.on_batch_accepted(now, &second);
    assert!(outbox.is_empty() && outbox.next_batch().is_none());
}

#[test]
fn large_messages_go_in_small_batches() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    for id in 0..3 {
        let bytes = vec![b'x'; MAX_BATCH_BYTES].into();
        let content = Content {
            bytes,
            ..Content::default()
        };
        let stream = Some(StreamAction::Send(content));
        let large = Publication {
            stream,
            ..publication("a", id)
        };
        outbox.submit(now, large, LocalDelivery::Awaited);
    }
    assert_eq!(outbox.next_batch().unwrap().len(), 1);
}

#[test]
fn what_was_on_its_way_is_sent_again_over_another_connection() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, 3);
    let lost = outbox.next_batch().unwrap();
    outbox.on_connected(now, true);
    let again = outbox.next_batch().unwrap();
    assert_eq!(said(&again), said(&lost));
    assert_eq!(again[0].number, lost[0].number);
}

#[test]
fn a_new_dataset_gets_recent_messages_again() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, 2);
    let batch = outbox.next_batch().unwrap();
    outbox.on_batch_accepted(now, &batch);
    let later = now + RESEND_WINDOW / 2;
    outbox.submit(later, publication("a", 2), LocalDelivery::Awaited);
    let batch = outbox.next_batch().unwrap();
    outbox.on_batch_accepted(later, &batch);
    // The first two are old by now.
    outbox.drop_expired(now + RESEND_WINDOW, |_, _| false);
    outbox.on_connected(now + RESEND_WINDOW, false);
    assert_eq!(said(&outbox.next_batch().unwrap()), ["2"]);
    assert_eq!(outbox.unsent_messages(), 1);
}

#[test]
fn what_is_dropped_before_it_was_taken_becomes_a_gap_in_front() {
    let now = Instant::now();
    let mut outbox = Outbox::with_max_messages(3);
    filled(&mut outbox, now, 3);
    assert!(outbox.is_full_for(&publication("b", 3)));
    for id in 3..5 {
        outbox.submit(now, publication("b", id), LocalDelivery::Early);
    }
    assert_eq!(outbox.dropped_messages(), 2);
    let batch = outbox.next_batch().unwrap();
    assert_eq!(said(&batch), ["Gap a", "2", "3", "4"]);
    assert!(batch.iter().map(|entry| entry.number).is_sorted());
    assert_eq!(
        batch
            .iter()
            .filter(|entry| entry.was_delivered_early)
            .count(),
        2
    );
    outbox.on_batch_accepted(now, &batch);
    assert!(outbox.is_empty());
    // A Redis that forgets the gap forgets where it was.
    outbox.on_connected(now, false);
    assert_eq!(
        said(&outbox.next_batch().unwrap()),
        ["GapInAllChannels ", "2", "3", "4"]
    );
}

#[test]
fn losses_of_too_many_channels_are_a_gap_of_all() {
    let now = Instant::now();
    let mut outbox = Outbox::with_max_messages(1);
    for id in 0..MAX_LOST_CHANNELS + 3 {
        outbox.submit(
            now,
            publication(&format!("c{id}"), id),
            LocalDelivery::Early,
        );
    }
    let mut announced = Vec::new();
    while let Some(batch) = outbox.next_batch() {
        announced.extend(said(&batch));
        outbox.on_batch_accepted(now, &batch);
    }
    assert_eq!(announced.len(), MAX_LOST_CHANNELS + 2, "{announced:?}");
    assert_eq!(
        announced[MAX_LOST_CHANNELS..],
        [
            "GapInAllChannels ".to_owned(),
            format!("{}", MAX_LOST_CHANNELS + 2)
        ]
    );
}

#[test]
fn awaited_messages_are_delivered_once() {
    let now = Instant::now();
    let mut outbox = Outbox::new();
    filled(&mut outbox, now, 2);
    outbox.submit(now, publication("b", 2), LocalDelivery::Done);
    let first = outbox.next_number() - 3;
    outbox.mark_delivered(first);
    outbox.mark_channel_awaited("b");
    let ids = |outbox: &mut Outbox| -> Vec<String> {
        let awaited = outbox.take_awaited_messages().into_iter();
        awaited
            .map(|each| each.publication.id.unwrap().to_string())
            .collect()
    };
    // What came from Redis before it said that it took it is awaited again at worst for another
    // channel.
    assert_eq!(ids(&mut outbox), ["1", "2"]);
    assert!(ids(&mut outbox).is_empty());
    let batch = outbox.next_batch().unwrap();
    let early: Vec<bool> = batch
        .iter()
        .map(|entry| entry.was_delivered_early)
        .collect();
    assert_eq!(early, [false, true, true]);
}

#[test]
fn messages_without_local_subscribers_are_counted_until_accepted() {
    let now = Instant::now();
    let mut outbox = Outbox::with_max_messages(4);
    for id in 0..3 {
        outbox.submit(now, publication("a", id), LocalDelivery::Done);
    }
    filled(&mut outbox, now, 1);
    let unsubscribed = |outbox: &Outbox| outbox.unsent_without_subscribers.get("a").copied();
    assert_eq!(unsubscribed(&outbox), Some(3));
    outbox.submit(now, publication("b", 4), LocalDelivery::Early);
    assert_eq!(unsubscribed(&outbox), Some(2), "the oldest made room");
    let batch = outbox.next_batch().unwrap();
    outbox.on_batch_accepted(now, &batch);
    assert!(outbox.unsent_without_subscribers.is_empty());
    outbox.on_connected(now, false);
    assert_eq!(unsubscribed(&outbox), Some(2), "it is sent again");
    outbox.mark_channel_awaited("a");
    assert!(outbox.unsent_without_subscribers.is_empty());
    assert_eq!(outbox.take_awaited_messages().len(), 3);
}
