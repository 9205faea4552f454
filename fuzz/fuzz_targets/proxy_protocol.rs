//! Any bytes as a PROXY header: no panic, the same outcome at every cut, a bounded wait, and a
//! header that names a client survives being written and read again in both versions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_wire::proxy_protocol::{HEADER_BYTES_MAX, Header, encode_v1, encode_v2, parse};

fuzz_target!(|data: &[u8]| {
    let whole = parse(data);
    let cuts = (0..data.len().min(300)).map(|cut| parse(&data[..cut]));
    match whole {
        Ok(None) => assert!(data.len() < HEADER_BYTES_MAX),
        Ok(Some((header, len))) => {
            assert!(len > 0 && len <= data.len() && len <= HEADER_BYTES_MAX);
            for (cut, early) in cuts.enumerate() {
                assert_eq!(early, if cut < len { Ok(None) } else { whole });
            }
            write_again(header);
        }
        Err(error) => {
            for early in cuts {
                assert!(early == Ok(None) || early == Err(error));
            }
        }
    }
});

fn write_again(header: Header) {
    let Header::Tcp {
        source,
        destination,
    } = header
    else {
        return;
    };
    let (mut v1, mut v2) = (Vec::new(), Vec::new());
    encode_v1(&mut v1, Some((source, destination)));
    encode_v2(&mut v2, Some((source, destination)));
    let v1 = read_whole(&v1);
    assert_eq!(v1, read_whole(&v2));
    // Mapped addresses become what they stand for, and nothing else changes.
    if let Header::Tcp {
        source: again,
        destination: there,
    } = v1
    {
        assert_eq!(again.ip().to_canonical(), source.ip().to_canonical());
        assert_eq!(there.ip().to_canonical(), destination.ip().to_canonical());
        assert_eq!(
            (again.port(), there.port()),
            (source.port(), destination.port())
        );
    }
}

fn read_whole(bytes: &[u8]) -> Header {
    match parse(bytes) {
        Ok(Some((header @ Header::Tcp { .. }, len))) if len == bytes.len() => header,
        other => panic!("{other:?} of {bytes:?}"),
    }
}
