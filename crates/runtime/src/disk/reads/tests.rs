//! Reads that are joined, lost or cut short, and the memory that they take.

use super::*;

const FILE: FileKey = FileKey::Handle(1);

fn block_on<F: Future>(future: F) -> F::Output {
    crate::loops::block_on(future).unwrap()
}

fn outcome(
    reads: &InFlightReads,
    start: u64,
    len: usize,
    wanted: u64,
) -> Result<ReadData, Arc<io::Error>> {
    Ok(ReadData::new(
        start,
        vec![7; len],
        reads.claim_memory(wanted, 1),
    ))
}

#[test]
fn a_read_in_flight_is_found_by_its_range() {
    let reads = InFlightReads::default();
    let (mut first, landing) = reads.begin_read(FILE, 4096, 8192);
    let (_other, other_landing) = reads.begin_read(FILE, 16384, 20480);
    for (file, at, expected) in [
        (FILE, 4095, false),
        (FILE, 4096, true),
        (FILE, 8191, true),
        (FILE, 8192, false),
        (FILE, 16384, true),
        (FILE, CHUNK_BYTES + 4096, false),
        (FileKey::Handle(2), 4096, false),
    ] {
        assert_eq!(
            reads.find_read(file, at).is_some(),
            expected,
            "{file:?} {at}"
        );
    }
    for (at, len, expected) in [
        (0, 4096, false),
        (0, 4097, true),
        (5000, 1, true),
        (8192, 8192, false),
        (0, CHUNK_BYTES, true),
        (CHUNK_BYTES, CHUNK_BYTES, false),
    ] {
        assert_eq!(reads.is_being_read(FILE, at, len), expected, "{at} {len}");
    }
    let mut second = reads.find_read(FILE, 5000).unwrap();
    landing.complete(outcome(&reads, 4096, 4096, 4096));
    assert!(reads.find_read(FILE, 5000).is_none() && reads.is_being_read(FILE, 0, CHUNK_BYTES));
    assert!(!first.is_pending() && !second.is_pending() && second.id == first.id);
    for flight in [&mut first, &mut second] {
        let landed = block_on(flight.wait()).unwrap().unwrap();
        assert_eq!(landed.part(5000, 10_000).unwrap().len(), 3192);
        assert_eq!(landed.part(8192, 1), None);
    }
    drop(other_landing);
    assert!(!reads.is_being_read(FILE, 0, CHUNK_BYTES));
    assert_eq!(reads.shared.count.load(Ordering::Relaxed), 0);
    assert!(reads.shared.lock().is_empty());
}

#[test]
fn a_dropped_completion_is_an_error() {
    let reads = InFlightReads::default();
    let (mut flight, landing) = reads.begin_read(FILE, 0, 4096);
    assert!(flight.is_pending());
    drop(landing);
    assert!(!flight.is_pending());
    assert!(block_on(flight.wait()).is_none());
    assert!(reads.find_read(FILE, 0).is_none());
}

#[test]
fn a_read_without_waiters_is_abandoned() {
    let reads = InFlightReads::default();
    let (first, landing) = reads.begin_read(FILE, 0, 4096);
    let second = reads.find_read(FILE, 0).unwrap();
    drop(first);
    assert!(landing.is_wanted() && reads.find_read(FILE, 0).is_some());
    assert_eq!(landing.waiter_count(), 1);
    drop(second);
    assert!(!landing.is_wanted() && reads.find_read(FILE, 0).is_none());
    drop(landing);
    assert_eq!(reads.shared.count.load(Ordering::Relaxed), 0);
}

#[test]
fn the_end_of_the_file_differs_from_the_end_of_a_read() {
    let reads = InFlightReads::default();
    let short = outcome(&reads, 4096, 100, 4096).unwrap();
    assert_eq!(short.part(4096, 4096).unwrap().len(), 100);
    for at in [4196, 5000] {
        assert_eq!(short.part(at, 1).unwrap().len(), 0, "{at}");
    }
    let whole = outcome(&reads, 4096, 4096, 4096).unwrap();
    assert_eq!(whole.part(8192, 1), None);
    assert_eq!(whole.part(4095, 1), None);
}

#[test]
fn read_memory_is_bounded_and_released_with_the_last_part() {
    let reads = InFlightReads::default();
    let mut pieces = Vec::new();
    while !reads.is_memory_scarce() {
        let claim = reads.claim_memory(CHUNK_BYTES, 1);
        assert_eq!(claim.bytes(), CHUNK_BYTES);
        let outcome = ReadData::new(0, vec![0; 512 * 1024], claim);
        pieces.push(outcome.part(0, 1).unwrap());
        assert!(pieces.len() <= 65);
    }
    let mut more = Vec::new();
    for _ in 0..100 {
        more.push(reads.claim_memory(CHUNK_BYTES, 1));
    }
    let small = more
        .iter()
        .filter(|claim| claim.bytes() == SMALL_READ_BYTES);
    assert_eq!((pieces.len(), small.count()), (65, 37));
    assert_eq!(reads.claim_memory(10, 1).bytes(), 10);
    // A shared read may be as large as the waiters' own reads together.
    for (waiters, expected) in [(0, 1), (3, 3), (8, 8), (100, 8)] {
        let claim = reads.claim_memory(CHUNK_BYTES, waiters);
        assert_eq!(claim.bytes(), expected * SMALL_READ_BYTES, "{waiters}");
    }
    drop(more);
    assert!(reads.is_memory_scarce());
    pieces.pop();
    assert!(!reads.is_memory_scarce());
    drop(pieces);
    assert_eq!(reads.shared.memory.bytes.load(Ordering::Relaxed), 0);
}

#[test]
fn facts_are_kept_for_each_owner_and_a_bounded_number_of_owners() {
    let reads = InFlightReads::default();
    let file = |mount, user| FileIdentity {
        mount: MountId {
            device: (0, 1),
            mount,
        },
        inode: u64::from(user),
        changed_at: (0, 0),
        bytes: 1,
        ownership: FileOwnership {
            user,
            group: 0,
            mode: 0o644,
        },
    };
    for number in 0..5000 {
        let (file, others) = (file(number, 1), file(number, 2));
        reads.remember_facts(&file, ResidencyFacts::UNDETECTED);
        let again = FileIdentity { inode: 7, ..file };
        assert!(reads.facts(&again).is_some() && reads.facts(&others).is_none());
    }
    assert!(reads.lock_facts().len() <= MAX_OWNERS);
    reads.forget_facts(&file(4999, 1));
    assert!(reads.facts(&file(4999, 1)).is_none());
    // A history is shared by all holders of a file and dropped with the last.
    let seen = reads.read_history(file(1, 1));
    assert!(Arc::ptr_eq(&seen, &reads.read_history(file(1, 1))));
    assert!(!Arc::ptr_eq(&seen, &reads.read_history(file(1, 2))));
    for number in 0..100_000 {
        reads.read_history(file(number, 3));
    }
    assert!(reads.read_history.lock().unwrap().len() < 10_000);
    assert!(Arc::ptr_eq(&seen, &reads.read_history(file(1, 1))));
}
