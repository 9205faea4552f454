//! Certificates that arrive while a configuration is replaced.

use std::path::Path;

use penstock_tls::stand_in;

use super::*;

fn config(sites: &str) -> Config {
    let text = format!(
        "[server]\nlisten = [{{ address = \":443\", tls = true }}]\n\
         [acme]\non_demand = {{ ask = \"http://127.0.0.1:1/\" }}\n\
         [upstreams.a]\nservers = [\"127.0.0.1:1\"]\n{sites}"
    );
    penstock_config::parse(&text, Path::new("/tmp/penstock.toml")).unwrap()
}

const NAMED: &str = "[[sites]]\nhosts = [\"a.test\"]\ntls = \"auto\"\n\
    routes = [{ path = \"/*\", upstream = \"a\" }]\n";
const OPEN: &str = "[[sites]]\ntls = \"auto\"\nroutes = [{ path = \"/*\", upstream = \"a\" }]\n";

fn certificate(host: &str) -> ServerCertificate {
    stand_in(&[host.to_owned()], UnixTime::now()).unwrap()
}

/// The certificate of a host that is in place.
fn in_place(service: &TlsService, host: &str) -> Option<Vec<u8>> {
    let current = service.current.lock();
    let entry = current.entries.iter().find(|entry| entry.hosts == [host])?;
    Some(entry.certificates()[0].certified_key.cert[0].to_vec())
}

fn der(certificate: &ServerCertificate) -> Option<Vec<u8>> {
    Some(certificate.certified_key.cert[0].to_vec())
}

#[test]
fn a_certificate_that_arrives_during_a_reload_stays() {
    let service = TlsService::new();
    service.apply(service.prepare(&config(NAMED)).unwrap());
    let prepared = service.prepare(&config(NAMED)).unwrap();
    let renewed = certificate("a.test");
    service.install("a.test", &renewed);
    service.apply(prepared);
    assert_eq!(in_place(&service, "a.test"), der(&renewed));
}

#[test]
fn names_on_demand_stay_over_a_reload_while_a_site_has_them() {
    let service = TlsService::new();
    let both = format!("{NAMED}{OPEN}");
    service.apply(service.prepare(&config(&both)).unwrap());
    let ordered = certificate("customer.test");
    service.install("customer.test", &ordered);
    service.apply(service.prepare(&config(&both)).unwrap());
    assert_eq!(in_place(&service, "customer.test"), der(&ordered));
    // Named by a site from now on.
    let named = format!("{OPEN}{}", NAMED.replace("a.test", "customer.test"));
    service.apply(service.prepare(&config(&named)).unwrap());
    assert_eq!(in_place(&service, "customer.test"), der(&ordered));
    assert_eq!(in_place(&service, "a.test"), None);
    service.apply(service.prepare(&config(NAMED)).unwrap());
    assert_eq!(in_place(&service, "customer.test"), None);
}

#[test]
fn a_file_that_was_read_again_changes_no_requirement() {
    let entry = |mode: &str| {
        let site = format!(
            "{}client_certificates = {{ ca = \"/x\", mode = \"{mode}\" }}\n",
            NAMED.replace("routes", "#")
        );
        let text = format!("{site}routes = [{{ path = \"/*\", upstream = \"a\" }}]\n");
        let sites = config(&text).sites;
        let pem = rcgen::generate_simple_self_signed(vec!["ca".to_owned()]).unwrap();
        let mode = match mode {
            "require" => penstock_tls::ClientCertificateMode::Require,
            _ => penstock_tls::ClientCertificateMode::Request,
        };
        let clients = ClientCertificates::from_pem(mode, pem.cert.pem().as_bytes(), None).unwrap();
        SiteEntry::for_site(&sites[0], clients.policy()).remove(0)
    };
    let (mut in_place, read) = (entry("require"), entry("request"));
    let policy = in_place.to_certificates().policy;
    assert_ne!(policy, read.to_certificates().policy);
    in_place.take_certificates(&read);
    assert_eq!(in_place.to_certificates().policy, policy);
}
