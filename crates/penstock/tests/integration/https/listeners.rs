//! Which listeners have TLS, and which port a redirect names.

use super::{file_site, file_toml, write_certificate};
use crate::support::{PATIENCE, RawClient, Server, TestAuthority, TlsClient, eventually, is_alive};
use crate::support::{kill, texts};
use rustix::process::Signal;

/// Two listeners that differ in TLS alone.
const BOTH: &str = "[server]\nthreads = 1\n\
    listen = [\"127.0.0.1:0\", { address = \"127.0.0.1:0\", tls = true }]\n";

/// One is HTTPS, the other redirects to it.
fn check_both(plain: u16, https: u16, client: &TlsClient) {
    let mut over_plain = RawClient::connect(plain);
    over_plain.send("GET /a.txt HTTP/1.1\r\nHost: a.test\r\n\r\n");
    let answer = over_plain.expect_status(308);
    let expected = format!("https://a.test:{https}/a.txt");
    assert_eq!(answer.header("location"), Some(expected.as_str()));
    let answer = client.get(https, "a.test", "/a.txt");
    assert_eq!((answer.status, answer.text().as_str()), (200, "a file"));
}

fn reload(server: &Server) {
    let admin = format!("127.0.0.1:{}", server.admin_port());
    let (stdout, stderr) = texts(&server.site().run(&["reload", "--admin", &admin]));
    assert!(stdout.contains("reloaded"), "{stdout}{stderr}");
}

#[test]
fn of_two_free_ports_one_has_tls_and_redirects_name_it() {
    let (site, toml) = file_site();
    let authority = TestAuthority::new("Sites");
    write_certificate(&site, "a", &authority.issue(&["a.test"]));
    let server = site.config(&format!("{BOTH}{toml}")).serve(&[]);
    let (client, ports) = (authority.client(), server.ports());
    let [plain, https] = ports[..] else {
        panic!("two ports: {}", server.log())
    };
    check_both(plain, https, &client);
    // A reload keeps each at its port.
    let more = format!("{BOTH}{}", file_toml("hsts = \"1h\""));
    server.site().write("penstock.toml", more);
    reload(&server);
    check_both(plain, https, &client);
    // As does an upgrade.
    server.signal(Signal::USR2);
    assert_eq!(
        server.wait_exit(PATIENCE).code(),
        Some(0),
        "{}",
        server.log()
    );
    check_both(plain, https, &client);
    let successor = i32::try_from(server.admin_json()["pid"].as_i64().unwrap()).unwrap();
    kill(successor, Signal::TERM);
    eventually(PATIENCE, "the successor ends", || !is_alive(successor));
}
