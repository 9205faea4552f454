//! An upgrade to an older version, which does not know all messages.

use super::*;

/// A version without the message by which the hub moves. It reads what it is sent and fails as that
/// version does.
const OLDER: &str = r#"#!/usr/bin/env python3
import os, socket, sys

line = socket.socket(fileno=int(os.environ["PENSTOCK_HANDOVER"]))
while True:
    message, _, _, _ = socket.recv_fds(line, 65536, 4)
    if message == b'"hub"':
        sys.exit("penstock: PENSTOCK_HANDOVER: unknown message: unknown variant `hub`, expected one"
                 " of `hello`, `socket`")
    if not message:
        sys.exit("penstock: the previous server closed the channel")
"#;

#[test]
fn an_older_version_that_cannot_take_streams_changes_nothing() {
    let server = serve("[server]\n[apps.site]\nprocesses = 1\n");
    server.site().write("older", OLDER);
    let path = server.site().dir().join("older");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
    let (code, _, stderr) = upgrade(&server, &["--binary", "older"]);
    assert_eq!(code, Some(1), "{stderr}");
    for words in [
        "the new server ended with exit code 1",
        "unknown variant `hub`",
        "it is an older version, which cannot take held streams over: to go back to it, stop this \
         server and start that one",
    ] {
        assert!(stderr.contains(words), "{words}: {stderr}");
    }
    assert_eq!(pid_now(&server), server.pid());
    assert_eq!(server.get("/a.txt").text(), "file");
    // The next upgrade is not kept from anything.
    let (code, stdout, stderr) = upgrade(&server, &[]);
    assert_eq!(code, Some(0), "{stdout}{stderr}\n{}", server.log());
    SuccessorProcess::of(&server).end();
}
