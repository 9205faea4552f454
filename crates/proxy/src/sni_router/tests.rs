//! Which upstream a name chooses.

use super::*;

#[derive(Debug)]
struct Named(&'static str);

impl TunnelHandler for Named {
    fn serve(
        &self,
        _: Arc<Stream>,
        _: PeerAddress,
        _: Arc<ListenerInfo>,
        _: Vec<u8>,
    ) -> TakeoverFuture {
        panic!("{} serves no client here", self.0)
    }
}

#[test]
fn the_most_specific_pattern_wins() {
    let handler = |name| Arc::new(Named(name)) as Arc<dyn TunnelHandler>;
    let exact = |name: &str| HostPattern::Exact(name.to_owned());
    let below = |suffix: &str| HostPattern::Subdomains(suffix.to_owned());
    let patterns = || {
        vec![
            (below(".example"), handler("wide")),
            (below(".b.example"), handler("narrow")),
            (exact("a.b.example"), handler("exact")),
        ]
    };
    let closed = SniRoutes::new(patterns(), None);
    let open = SniRoutes::new(patterns(), Some(handler("default")));
    let rows = [
        (Some("a.b.example"), Some("exact")),
        (Some("A.B.example"), Some("exact")),
        (Some("c.b.example"), Some("narrow")),
        (Some("b.example"), Some("wide")),
        (Some("example"), None),
        (Some("a.b.example.evil"), None),
        (None, None),
    ];
    for (name, expected) in rows {
        let found = closed.find(name).map(|found| format!("{found:?}"));
        let expected = expected.map(|name| format!("{:?}", Named(name)));
        assert_eq!(found, expected, "{name:?}");
        let found = open.find(name).map(|found| format!("{found:?}"));
        let expected = expected.or_else(|| Some(format!("{:?}", Named("default"))));
        assert_eq!(found, expected, "{name:?}");
    }
}
