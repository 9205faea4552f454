//! The body decoder with well-formed, hostile and split bodies.
//!
//! Each body is decoded whole, split in two at every position, and byte by byte, with the same
//! result. The hostile table follows published attacks on chunked framing.

use super::*;

/// Content, trailers and unread rest, or the error.
type Outcome = Result<(Vec<u8>, Vec<u8>, usize, bool), BodyError>;

fn read(framing: BodyFraming, pieces: &[&[u8]]) -> Outcome {
    let mut decoder = BodyDecoder::new(framing);
    let (mut content, mut rest) = (Vec::new(), Vec::new());
    for piece in pieces {
        rest.extend_from_slice(piece);
        loop {
            let found = decoder.decode(&rest)?;
            assert!(found.consumed <= rest.len() && found.content.end <= found.consumed);
            content.extend_from_slice(&rest[found.content]);
            rest.drain(..found.consumed);
            if found.consumed == 0 || found.is_done {
                break;
            }
        }
    }
    Ok((
        content,
        decoder.trailer_lines().to_vec(),
        rest.len(),
        decoder.is_done(),
    ))
}

fn check(name: &str, framing: BodyFraming, body: &[u8], expected: &Outcome) {
    assert_eq!(&read(framing, &[body]), expected, "{name}, whole");
    for split in 0..=body.len() {
        let pieces = [&body[..split], &body[split..]];
        assert_eq!(
            &read(framing, &pieces),
            expected,
            "{name}, split at {split}"
        );
    }
    let bytes: Vec<_> = body.chunks(1).collect();
    assert_eq!(&read(framing, &bytes), expected, "{name}, byte by byte");
}

#[test]
fn a_lenient_decoder_reads_what_old_servers_write() {
    let long = format!("5;{}\r\nhello\r\n0\r\n\r\n", "x".repeat(10_000));
    let rows: [(&str, &str, &str); 10] = [
        (
            "as it should be",
            "5;a=b\r\nhello\r\n0\r\nX: y\r\n\r\n",
            "X: y\r\n",
        ),
        ("padded", "5   \r\nhello\r\n0 \r\n\r\n", ""),
        (
            "padded before an extension",
            "5 ; a = \"b\r\nhello\r\n0;\r\n\r\n",
            "",
        ),
        ("a long extension", &long, ""),
        ("bare line feeds", "5\nhello\n0\n\n", ""),
        ("mixed", "5 x\nhello\r\n0\r\n\n", ""),
        (
            "trailers with bare line feeds",
            "5\nhello\n0\nX: y\nZ: z\n\n",
            "X: y\r\nZ: z\r\n",
        ),
        (
            "a trailer that is no field",
            "5\nhello\n0\r\nno field\r\nX: y\r\n\r\n",
            "X: y\r\n",
        ),
        (
            "a trailer that frames",
            "5\r\nhello\r\n0\r\nContent-Length: 1\r\n\r\n",
            "",
        ),
        (
            "more digits than an offset has",
            "00000000000000005\r\nhello\r\n0\r\n\r\n",
            "",
        ),
    ];
    for (name, text, trailers) in rows {
        for step in [1, 2, 3, text.len()] {
            let (mut decoder, mut content) = (BodyDecoder::lenient(), Vec::new());
            for piece in text.as_bytes().chunks(step) {
                let mut at = 0;
                while at < piece.len() {
                    let decoded = decoder.decode(&piece[at..]).unwrap();
                    content.extend_from_slice(&piece[at..][decoded.content]);
                    assert!(decoded.consumed > 0, "{name}: bytes behind the end");
                    at += decoded.consumed;
                }
            }
            assert!(decoder.is_done(), "{name}");
            assert_eq!(content, b"hello", "{name}");
            assert_eq!(decoder.trailer_lines(), trailers.as_bytes(), "{name}");
            let is_regular = name == "as it should be" || name == "a trailer that frames";
            assert_eq!(decoder.needed_leniency(), !is_regular, "{name}");
        }
    }
    for text in ["\n", " 5\r\n", "-5\r\n", "5\rx", "5\nhelloxy", "x\n"] {
        let error = BodyDecoder::lenient().decode(text.as_bytes());
        assert!(error.is_err(), "{text:?}");
    }
    let endless = format!("5;{}", "x".repeat(20_000));
    assert!(BodyDecoder::lenient().decode(endless.as_bytes()).is_err());
}

#[test]
fn reads_bodies_split_anywhere() {
    let chunked = BodyFraming::Chunked;
    for (name, framing, body, content, trailers, rest) in [
        ("none", BodyFraming::None, "GET /", "", "", 5),
        ("length zero", BodyFraming::Length(0), "x", "", "", 1),
        (
            "length",
            BodyFraming::Length(5),
            "helloGET /",
            "hello",
            "",
            5,
        ),
        ("no chunks", chunked, "0\r\n\r\n", "", "", 0),
        ("zeros", chunked, "0000000000000000\r\n\r\n", "", "", 0),
        (
            "more zeros than digits of 64 bits",
            chunked,
            "00000000000000000000000000000005\r\nhello\r\n00000000000000000000\r\n\r\n!",
            "hello",
            "",
            1,
        ),
        (
            "one chunk",
            chunked,
            "5\r\nhello\r\n0\r\n\r\nGET /",
            "hello",
            "",
            5,
        ),
        (
            "two chunks",
            chunked,
            "5\r\nhello\r\n00A\r\n, world!\r\n\r\n0\r\n\r\n",
            "hello, world!\r\n",
            "",
            0,
        ),
        (
            "extension",
            chunked,
            "2;a\r\nhi\r\n0;b=c;d=\"e\\\" ;\tf\"\r\n\r\n",
            "hi",
            "",
            0,
        ),
        (
            "blanks around the marks of extensions",
            chunked,
            "2 ;a\r\nhi\r\n2\t ; a\t=  b ;c = \"d e\" ; f\r\nho\r\n0 ; g\r\n\r\n",
            "hiho",
            "",
            0,
        ),
        (
            "trailers that come too late are left out",
            chunked,
            "1\r\nx\r\n0\r\nA: b\r\nContent-Length: 5\r\nHOST: evil\r\nC: d\r\n\
             transfer-encoding: chunked\r\n\r\n!",
            "x",
            "A: b\r\nC: d\r\n",
            1,
        ),
        (
            "trailers",
            chunked,
            "1\r\nx\r\n0\r\nA: b\r\nC:\r\n\r\n!",
            "x",
            "A: b\r\nC:\r\n",
            1,
        ),
        (
            "chunk-like data",
            chunked,
            "5\r\n0\r\n\r\n\r\n0\r\n\r\n",
            "0\r\n\r\n",
            "",
            0,
        ),
    ] {
        let expected = Ok((content.into(), trailers.into(), rest, true));
        check(name, framing, body.as_bytes(), &expected);
    }
}

#[test]
fn an_unfinished_body_is_never_done() {
    for (name, framing, body) in [
        ("length", BodyFraming::Length(6), "hello"),
        ("nothing", BodyFraming::Chunked, ""),
        ("size", BodyFraming::Chunked, "5"),
        ("data", BodyFraming::Chunked, "5\r\nhell"),
        ("no end after data", BodyFraming::Chunked, "5\r\nhello"),
        ("no last chunk", BodyFraming::Chunked, "5\r\nhello\r\n"),
        ("no final crlf", BodyFraming::Chunked, "0\r\n"),
        ("half the final crlf", BodyFraming::Chunked, "0\r\n\r"),
        ("unterminated trailer", BodyFraming::Chunked, "0\r\nA: b"),
        (
            "trailer without blank line",
            BodyFraming::Chunked,
            "0\r\nA: b\r\n",
        ),
    ] {
        let (_, _, rest, done) = read(framing, &[body.as_bytes()]).unwrap();
        assert_eq!((rest, done), (0, false), "{name}");
    }
}

#[test]
fn refuses_every_doubtful_chunk() {
    use BodyError::{
        BadChunkExtension, BadChunkSize, BadLineEnd, ChunkExtensionsTooLarge, ChunkOverrun,
        ChunkTooLarge,
    };
    let long = format!("5;{}\r\nhello\r\n", "a".repeat(256));
    let huge = format!("5;{}\r\nhello\r\n", "a".repeat(64 << 10));
    let zeros = format!("{}5\r\nhello\r\n", "0".repeat(256));
    let blanks = format!("5{};a\r\nhello\r\n", " ".repeat(257));
    let repeated = format!("1;{}\r\nx\r\n", "a".repeat(200)).repeat(100);
    for (name, body, error) in [
        ("hexadecimal prefix", "0x5\r\nhello\r\n", BadChunkSize),
        ("plus", "+5\r\nhello\r\n", BadChunkSize),
        ("minus", "-5\r\nhello\r\n", BadChunkSize),
        ("underscore", "5_0\r\nhello\r\n", BadChunkSize),
        ("leading space", " 5\r\nhello\r\n", BadChunkSize),
        ("trailing space", "5 \r\nhello\r\n", BadChunkSize),
        ("trailing tab", "5\t\r\nhello\r\n", BadChunkSize),
        ("empty", "\r\nhello\r\n", BadChunkSize),
        ("only an extension", ";a\r\nhello\r\n", BadChunkSize),
        ("not hexadecimal", "g\r\n", BadChunkSize),
        ("overflow", "fffffffffffffffff\r\n", ChunkTooLarge),
        (
            "overflow behind zeros",
            "00010000000000000005\r\nhello\r\n",
            ChunkTooLarge,
        ),
        ("257 digits", &zeros, BadChunkSize),
        ("2^64 - 1", "ffffffffffffffff\r\n", ChunkTooLarge),
        ("2^63", "8000000000000000\r\n", ChunkTooLarge),
        ("nul", "5\0\r\n", BadChunkSize),
        ("size ends in lf", "5\nhello\r\n", BadLineEnd),
        ("size ends in cr", "5\rhello\r\n", BadLineEnd),
        ("size ends in cr cr lf", "5\r\r\nhello\r\n", BadLineEnd),
        ("data ends in lf", "5\r\nhello\n0\r\n\r\n", BadLineEnd),
        ("data ends in cr", "5\r\nhello\r0\r\n\r\n", BadLineEnd),
        (
            "data longer than its size",
            "5\r\nhelloSPILL\r\n0\r\n\r\n",
            ChunkOverrun,
        ),
        ("no crlf after data", "5\r\nhello0\r\n\r\n", ChunkOverrun),
        (
            "blank line between chunks",
            "1\r\nx\r\n\r\n0\r\n\r\n",
            BadChunkSize,
        ),
        ("last chunk ends in lf", "0\n\n", BadLineEnd),
        ("final line is lf", "0\r\n\n", BadLineEnd),
        ("final line is cr and more", "0\r\n\rX", BadLineEnd),
        ("extension with lf", "5;a\nhello\r\n", BadLineEnd),
        ("extension with cr", "5;a\rhello\r\n", BadLineEnd),
        ("extension with nul", "5;\0\r\nhello\r\n", BadChunkExtension),
        (
            "extension without a name",
            "5;\r\nhello\r\n",
            BadChunkExtension,
        ),
        (
            "extension without a value",
            "5;a=\r\nhello\r\n",
            BadChunkExtension,
        ),
        ("blank in the size", "0 5\r\nhello\r\n", BadChunkSize),
        ("blank, then a name", "5 a\r\nhello\r\n", BadChunkSize),
        (
            "blank before the line end",
            "5;a \r\nhello\r\n",
            BadChunkExtension,
        ),
        (
            "blank between a value and the line end",
            "5;a=b\t\r\nhello\r\n",
            BadChunkExtension,
        ),
        (
            "blank between quotes and the line end",
            "5;a=\"b\" \r\nhello\r\n",
            BadChunkExtension,
        ),
        ("blank in a name", "5;a b\r\nhello\r\n", BadChunkExtension),
        (
            "blank in a value",
            "5;a=b c\r\nhello\r\n",
            BadChunkExtension,
        ),
        ("blank for a name", "5; \r\nhello\r\n", BadChunkExtension),
        ("blank for a value", "5;a= \r\nhello\r\n", BadChunkExtension),
        ("blanks above 256 bytes", &blanks, ChunkExtensionsTooLarge),
        ("unclosed quote", "5;a=\"b\r\nhello\r\n", BadChunkExtension),
        ("lf in quotes", "5;a=\"\n\"\r\nhello\r\n", BadLineEnd),
        ("cr in quotes", "5;a=\"\r\"\r\nhello\r\n", BadLineEnd),
        (
            "escaped lf in quotes",
            "5;a=\"\\\n\"\r\nhello\r\n",
            BadLineEnd,
        ),
        ("after quotes", "5;a=\"b\"c\r\nhello\r\n", BadChunkExtension),
        ("extension above 256 bytes", &long, ChunkExtensionsTooLarge),
    ] {
        check(name, BodyFraming::Chunked, body.as_bytes(), &Err(error));
    }
    for (name, body) in [
        ("extension of 64 KB", &huge),
        ("extensions in every chunk", &repeated),
    ] {
        let outcome = read(BodyFraming::Chunked, &[body.as_bytes()]);
        assert_eq!(outcome, Err(ChunkExtensionsTooLarge), "{name}");
    }
}

#[test]
fn refuses_every_doubtful_trailer() {
    use BodyError::{BadLineEnd, BadTrailer};
    for (name, trailer, error) in [
        ("no colon", "GET / HTTP/1.1\r\n", BadTrailer),
        ("empty name", ": x\r\n", BadTrailer),
        ("space before colon", "A : x\r\n", BadTrailer),
        ("folded", "A: b\r\n c\r\n", BadTrailer),
        ("control byte", "A: \x01\r\n", BadTrailer),
        ("nul", "A: \0\r\n", BadTrailer),
        ("nul in one left out", "Host: \0\r\n", BadTrailer),
        ("ends in lf", "A: b\n\n", BadLineEnd),
        ("cr inside", "A: b\rGET / HTTP/1.1\r\n", BadLineEnd),
    ] {
        let body = format!("0\r\n{trailer}\r\n");
        check(name, BodyFraming::Chunked, body.as_bytes(), &Err(error));
    }
}

#[test]
fn bounds_trailers() {
    for (name, value_len, is_fine) in [("5 KB", 5_000, true), ("9 KB", 9_000, false)] {
        let body = format!("0\r\nA: {}\r\n\r\n", "b".repeat(value_len));
        let outcome = read(BodyFraming::Chunked, &[body.as_bytes()]);
        assert_eq!(outcome.is_ok(), is_fine, "{name}");
    }
    for line in ["A: b\r\n", "Host: b\r\n"] {
        let many = format!("0\r\n{}", line.repeat(2_000));
        let outcome = read(BodyFraming::Chunked, &[many.as_bytes()]);
        assert_eq!(outcome, Err(BodyError::TrailersTooLarge), "{line:?}");
    }
}

#[test]
fn reports_what_remains_of_a_known_length() {
    let mut decoder = BodyDecoder::new(BodyFraming::Length(u64::MAX));
    assert_eq!(decoder.remaining(), Some(u64::MAX));
    assert_eq!(
        decoder.decode(b"abc"),
        Ok(DecodeProgress {
            consumed: 3,
            content: 0..3,
            is_done: false
        })
    );
    assert_eq!(decoder.remaining(), Some(u64::MAX - 3));
    assert_eq!(BodyDecoder::new(BodyFraming::Chunked).remaining(), None);
    assert_eq!(BodyDecoder::new(BodyFraming::None).remaining(), Some(0));
}

#[test]
fn writes_chunks_that_read_back() {
    let mut body = Vec::new();
    let mut content = Vec::new();
    for len in [1, 15, 16, 255, 256, 4096] {
        let data = vec![b'x'; len];
        encode_chunk_head(len, &mut body);
        body.extend_from_slice(&data);
        body.extend_from_slice(b"\r\n");
        content.extend_from_slice(&data);
    }
    assert!(body.starts_with(b"1\r\nx\r\nf\r\n"));
    body.extend_from_slice(LAST_CHUNK);
    assert_eq!(
        read(BodyFraming::Chunked, &[&body]),
        Ok((content, Vec::new(), 0, true))
    );
    let mut largest = Vec::new();
    encode_chunk_head(usize::MAX, &mut largest);
    assert_eq!(largest, b"ffffffffffffffff\r\n");
}
