//! What a backlog keeps, drops and says, also under random use.

use super::*;

const WIDE: BacklogRoom = BacklogRoom {
    stream_bytes: usize::MAX / 2,
    total_bytes: usize::MAX / 2,
};

fn piece(text: &str) -> BacklogPiece {
    BacklogPiece::message(Bytes::copy_from_slice(text.as_bytes()), 1)
}

/// All that would go out.
fn content(backlog: &Backlog) -> String {
    let mut slices = [IoSlice::new(&[]); MAX_IO_SLICES];
    let count = backlog.fill_io_slices(&mut slices);
    let bytes: Vec<u8> = slices[..count].iter().flat_map(|s| s.to_vec()).collect();
    String::from_utf8(bytes).unwrap()
}

fn room_for(pieces: usize) -> BacklogRoom {
    BacklogRoom {
        stream_bytes: pieces * (3 + PIECE_OVERHEAD),
        ..WIDE
    }
}

#[test]
fn bytes_come_out_in_order_however_little_is_taken() {
    let mut backlog = Backlog::new(0);
    backlog.push(piece("abcdef"), 2);
    assert_eq!(backlog.push_dropping_oldest(piece("gh"), WIDE, None), 0);
    assert_eq!(content(&backlog), "cdefgh");
    assert_eq!(backlog.mark_written(3, 7), 0);
    assert_eq!(
        (content(&backlog).as_str(), backlog.last_progress_tick),
        ("fgh", 7)
    );
    assert_eq!(backlog.mark_written(0, 9), 0);
    assert_eq!(backlog.last_progress_tick, 7, "nothing was taken");
    assert_eq!(backlog.mark_written(2, 9), 1);
    assert_eq!(backlog.mark_written(1, 9), 1);
    assert!(backlog.is_empty() && backlog.memory_bytes() == 0);
}

#[test]
fn the_oldest_messages_are_dropped_but_never_a_part() {
    let gap = Bytes::from_static(b"<gap>");
    for (name, started, gap, expected, dropped) in [
        ("nothing is out", 0, None, "dddeee", 3),
        ("a part is out", 1, None, "aaeee", 3),
        ("all are told", 0, Some(&gap), "<gap>dddeee", 3),
        (
            "all are told behind the part",
            1,
            Some(&gap),
            "aa<gap>eee",
            3,
        ),
    ] {
        let mut backlog = Backlog::new(0);
        backlog.push(piece("aaa"), started);
        let mut lost = 0;
        for text in ["bbb", "ccc", "ddd", "eee"] {
            lost += backlog.push_dropping_oldest(piece(text), room_for(2), gap);
        }
        assert_eq!(content(&backlog), expected, "{name}");
        assert_eq!(lost, dropped, "{name}");
    }
}

#[test]
fn the_only_message_may_be_larger_than_its_bound_but_not_than_that_of_all() {
    let tight = BacklogRoom {
        stream_bytes: 1,
        ..WIDE
    };
    let mut backlog = Backlog::new(0);
    backlog.push(piece("begun"), 1);
    assert_eq!(backlog.push_dropping_oldest(piece("large"), tight, None), 0);
    assert_eq!(backlog.push_dropping_oldest(piece("other"), tight, None), 1);
    assert_eq!(content(&backlog), "egunother");
    let full = BacklogRoom {
        stream_bytes: 1,
        total_bytes: 0,
    };
    assert_eq!(
        backlog.push_dropping_oldest(piece("more"), full, None),
        1,
        "the older one makes room"
    );
    assert_eq!(content(&backlog), "egunmore");
    let mut backlog = Backlog::new(0);
    backlog.push(piece("begun"), 1);
    assert_eq!(backlog.push_dropping_oldest(piece("more"), full, None), 1);
    assert_eq!(content(&backlog), "egun");
}

#[test]
fn what_a_stream_began_with_stays() {
    let mut backlog = Backlog::new(0);
    for text in ["one", "two"] {
        let first = BacklogPiece {
            kind: PieceKind::Initial,
            ..piece(text)
        };
        backlog.push(first, 0);
    }
    let mut lost = 0;
    for text in ["aaa", "bbb", "ccc"] {
        lost += backlog.push_dropping_oldest(piece(text), room_for(1), None);
    }
    assert_eq!((content(&backlog).as_str(), lost), ("onetwoccc", 2));
}

#[test]
fn a_heart_beat_that_is_dropped_is_no_gap() {
    let gap = Bytes::from_static(b"<gap>");
    let mut backlog = Backlog::new(0);
    backlog.push(BacklogPiece::message(Bytes::from_static(b":::"), 0), 0);
    assert_eq!(
        backlog.push_dropping_oldest(piece("aaa"), room_for(1), Some(&gap)),
        0
    );
    assert_eq!(content(&backlog), "aaa");
}

#[test]
fn all_messages_can_be_dropped_at_once_but_for_one_that_is_partly_out() {
    let gap = Bytes::from_static(b"<gap>");
    for (offset, expected) in [(0, "head<gap>"), (4, "<gap>"), (5, "ne<gap>")] {
        let mut backlog = Backlog::new(0);
        for (text, messages) in [("head", 0), ("one", 1), ("two", 1)] {
            let kind = PieceKind::Initial;
            let first = BacklogPiece {
                kind,
                messages,
                ..piece(text)
            };
            backlog.push(first, 0);
        }
        backlog.mark_written(offset, 0);
        let dropped = backlog.drop_messages(Some(&gap));
        assert_eq!(
            (content(&backlog).as_str(), dropped),
            (expected, if offset == 5 { 1 } else { 2 })
        );
        backlog.mark_written(expected.len(), 0);
        assert!(backlog.is_empty() && backlog.memory_bytes() == 0);
    }
}

#[test]
fn every_run_keeps_whole_pieces_in_order_within_the_bounds() {
    for seed in 1..=200_u64 {
        let mut dice = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15);
        let mut roll = move |sides: usize| {
            dice ^= dice >> 12;
            dice ^= dice << 25;
            dice ^= dice >> 27;
            let rolled = dice.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 33;
            usize::try_from(rolled).unwrap() % sides
        };
        let gap = Bytes::from_static(b"(gap)");
        let mut backlog = Backlog::new(0);
        let (mut out, mut pushed, mut lost, mut completed) = (String::new(), 0, 0, 0);
        for step in 0..300 {
            if roll(3) > 0 {
                pushed += 1;
                let text = format!("[{pushed}{}]", ".".repeat(roll(40)));
                let room = BacklogRoom {
                    stream_bytes: 400,
                    total_bytes: 600_usize.saturating_sub(backlog.memory_bytes()),
                };
                lost += backlog.push_dropping_oldest(piece(&text), room, Some(&gap));
            } else {
                let ready = content(&backlog);
                let taken = roll(ready.len() + 1);
                out.push_str(&ready[..taken]);
                completed += backlog.mark_written(taken, step);
            }
            let live = backlog.message_bytes;
            assert!(
                live <= 400 + 2 * (50 + PIECE_OVERHEAD),
                "seed {seed}: {live}"
            );
        }
        while !backlog.is_empty() {
            let ready = content(&backlog);
            out.push_str(&ready);
            completed += backlog.mark_written(ready.len(), 0);
        }
        assert_eq!(
            (backlog.memory_bytes, backlog.message_bytes),
            (0, 0),
            "seed {seed}"
        );
        assert_eq!(completed + lost, pushed, "seed {seed}");
        let mut before = 0;
        let mut gaps = 0;
        for whole in out.split_inclusive([']', ')']) {
            if whole == "(gap)" {
                gaps += 1;
                continue;
            }
            let inner = whole.strip_prefix('[').and_then(|w| w.strip_suffix(']'));
            let inner = inner.unwrap_or_else(|| panic!("seed {seed}: a part: {whole:?}"));
            let number: u32 = inner.trim_end_matches('.').parse().unwrap();
            assert!(number > before, "seed {seed}: {number} after {before}");
            assert!(
                number == before + 1 || gaps > 0,
                "seed {seed}: a silent gap before {number}"
            );
            gaps = 0;
            before = number;
        }
    }
}
