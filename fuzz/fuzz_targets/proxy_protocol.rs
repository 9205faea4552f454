//! Arbitrary bytes as a PROXY header: no panic, the same result for every split, a bounded wait,
//! and a header with a client survives a round trip in both versions.

#![no_main]

use libfuzzer_sys::fuzz_target;
use penstock_wire::proxy_protocol::{
    MAX_HEADER_BYTES, ProxyHeader, encode_v1, encode_v2, parse_header,
};

fuzz_target!(|data: &[u8]| {
    let whole = parse_header(data);
    let cuts = (0..data.len().min(300)).map(|cut| parse_header(&data[..cut]));
    match whole {
        Ok(None) => assert!(data.len() < MAX_HEADER_BYTES),
        Ok(Some((header, len))) => {
            assert!(len > 0 && len <= data.len() && len <= MAX_HEADER_BYTES);
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

fn write_again(header: ProxyHeader) {
    let ProxyHeader::Tcp {
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
    // Mapped addresses become canonical, and nothing else changes.
    if let ProxyHeader::Tcp {
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

fn read_whole(bytes: &[u8]) -> ProxyHeader {
    match parse_header(bytes) {
        Ok(Some((header @ ProxyHeader::Tcp { .. }, len))) if len == bytes.len() => header,
        other => panic!("{other:?} of {bytes:?}"),
    }
}
