//! Measures what one request costs the queue, in nanoseconds: `cargo run --release --example
//! queue_cost`.
//!
//! The application cases are claiming and freeing among many free slots, handing a freed slot to a
//! waiter, and cancelling in the middle of a long queue. The upstream cases are a claim at a chosen
//! slot, and waiters bound to one slot. The program is single-threaded; the mutex around the queue
//! is not measured.

use std::hint::black_box;
use std::io::Write;
use std::time::{Duration, Instant};

use penstock_queue::{Queue, QueueLimits, QueueOutcome, SlotId, SlotSpec};

const ROUNDS: u32 = 2_000_000;

fn main() -> std::io::Result<()> {
    let mut out = std::io::stdout().lock();
    for slots in [1, 4, 8, 64, 1024, 4096] {
        let cost = claim_and_finish(slots, 1, 1);
        writeln!(out, "submit + finish, {slots} slots of 1: {cost:.0} ns")?;
    }
    for (processes, threads) in [(4, 16), (64, 16), (1, 1024)] {
        let cost = claim_and_finish(processes, threads, 1);
        writeln!(
            out,
            "submit + finish, {processes} processes of {threads} slots of 1: {cost:.0} ns"
        )?;
    }
    let cost = claim_and_finish(8, 1, 1000);
    writeln!(out, "submit + finish, 8 slots of 1000: {cost:.0} ns")?;
    for waiting in [1, 1000] {
        let cost = finish_and_dispatch(waiting);
        writeln!(out, "submit + finish with {waiting} waiting: {cost:.0} ns")?;
    }
    let cost = cancel_from_the_middle();
    writeln!(out, "submit + cancel among 1000: {cost:.0} ns")?;
    for servers in [1, 8, 64] {
        let cost = claim_at_and_finish(servers);
        writeln!(
            out,
            "claim_at + finish, {servers} slots without a limit: {cost:.0} ns"
        )?;
    }
    let cost = finish_and_dispatch_bound(64);
    writeln!(
        out,
        "wait + finish with 64 slots and a queue for each: {cost:.0} ns"
    )
}

fn queue(processes: usize, threads: usize, capacity: u32) -> (Queue<u64>, Vec<SlotId>) {
    let mut queue = Queue::new(QueueLimits {
        max_len: 10_000,
        timeout: Duration::from_secs(30),
    });
    let now = Instant::now();
    let add = |index| {
        let spec = SlotSpec {
            generation: 1,
            group: if threads > 1 {
                index as u64 / threads as u64 + 1
            } else {
                0
            },
            loop_index: index % 4,
            request_capacity: capacity,
        };
        queue.add_slot(now, spec).0
    };
    let slots = (0..processes * threads).map(add).collect();
    (queue, slots)
}

/// Keeps about half of the capacity busy and frees slots in another order than they were claimed.
fn claim_and_finish(processes: usize, threads: usize, capacity: u32) -> f64 {
    let (mut queue, _) = queue(processes, threads, capacity);
    let half = processes * threads * capacity as usize / 2;
    let now = Instant::now();
    let mut busy = std::collections::VecDeque::new();
    for round in 0..ROUNDS {
        if let QueueOutcome::Dispatched(start) = queue.submit(now, 7, round as usize % 4) {
            busy.push_back(black_box(start).slot_id);
        }
        if queue.requests_in_progress() > half
            && let Some(slot) = busy.pop_front()
        {
            black_box(queue.finish_request(now, slot));
        }
    }
    per_round(now)
}

fn finish_and_dispatch(waiting: usize) -> f64 {
    let (mut queue, slots) = queue(1, 1, 1);
    let now = Instant::now();
    for _ in 0..=waiting {
        let _ = black_box(queue.submit(now, 7, 0));
    }
    for _ in 0..ROUNDS {
        let _ = black_box(queue.submit(now, 7, 0));
        black_box(queue.finish_request(now, slots[0]));
    }
    per_round(now)
}

/// Keeps some requests in progress at each server and claims the servers in rotation.
fn claim_at_and_finish(servers: usize) -> f64 {
    let (mut queue, slots) = queue(servers, 1, u32::MAX);
    for slot in slots.iter().cycle().take(servers * 3 / 2) {
        black_box(queue.claim_slot(*slot));
    }
    let now = Instant::now();
    for slot in slots.iter().cycle().take(ROUNDS as usize) {
        black_box(queue.claim_slot(*slot));
        black_box(queue.finish_request(now, *slot));
    }
    per_round(now)
}

fn finish_and_dispatch_bound(servers: usize) -> f64 {
    let (mut queue, slots) = queue(servers, 1, 1);
    let now = Instant::now();
    for slot in slots.iter().cycle().take(servers * 2) {
        let _ = black_box(queue.enqueue(now, 7, Some(*slot)));
    }
    for slot in slots.iter().cycle().take(ROUNDS as usize) {
        let _ = black_box(queue.enqueue(now, 7, Some(*slot)));
        black_box(queue.finish_request(now, *slot));
    }
    per_round(now)
}

fn cancel_from_the_middle() -> f64 {
    let (mut queue, _) = queue(0, 1, 1);
    let now = Instant::now();
    let mut tickets = std::collections::VecDeque::new();
    for round in 0..ROUNDS {
        if let QueueOutcome::Queued { ticket, .. } = queue.submit(now, 7, 0) {
            tickets.push_back(ticket);
        }
        let is_full = round >= 1000;
        let middle = tickets.len() / 2;
        if is_full && let Some(ticket) = tickets.swap_remove_back(middle) {
            black_box(queue.cancel(ticket));
        }
    }
    per_round(now)
}

fn per_round(since: Instant) -> f64 {
    since.elapsed().as_nanos() as f64 / f64::from(ROUNDS)
}
