//! Certificates for tests, and clients that trust them.
//!
//! An authority signs the certificates of sites and of clients. The peer is rustls' buffered client,
//! which shares no code with the server's sessions.

use std::io::{self, Read, Write};
use std::net::TcpStream;
use std::sync::Arc;
use std::time::Duration;

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, CertifiedIssuer,
    DistinguishedName, DnType, IsCa, KeyIdMethod, KeyPair, KeyUsagePurpose, RevokedCertParams,
    SerialNumber, date_time_ymd,
};
use rustls::client::Resumption;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, ClientConnection, HandshakeKind, RootCertStore, StreamOwned};

use super::client::ClientStream;
use super::{PATIENCE, RawClient, Response};

/// An authority that signs certificates.
pub(crate) struct TestAuthority(CertifiedIssuer<'static, KeyPair>);

/// A certificate and its key in PEM.
#[derive(Clone)]
pub(crate) struct TestCertificate {
    pub(crate) chain: String,
    pub(crate) key: String,
}

impl TestAuthority {
    pub(crate) fn new(name: &str) -> Self {
        let mut params = CertificateParams::new(Vec::<String>::new()).unwrap();
        params.distinguished_name = common_name(name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let key = KeyPair::generate().unwrap();
        Self(CertifiedIssuer::self_signed(params, key).unwrap())
    }

    /// Its own certificate.
    pub(crate) fn pem(&self) -> String {
        self.0.pem()
    }

    /// A certificate for hosts.
    pub(crate) fn issue(&self, hosts: &[&str]) -> TestCertificate {
        self.issue_with(hosts, |_| {})
    }

    /// The same with other properties.
    pub(crate) fn issue_with(
        &self,
        hosts: &[&str],
        change: impl FnOnce(&mut CertificateParams),
    ) -> TestCertificate {
        let hosts: Vec<String> = hosts.iter().map(|host| (*host).to_owned()).collect();
        let mut params = CertificateParams::new(hosts).unwrap();
        params.distinguished_name = common_name("site");
        change(&mut params);
        let key = KeyPair::generate().unwrap();
        TestCertificate {
            chain: params.signed_by(&key, &self.0).unwrap().pem(),
            key: key.serialize_pem(),
        }
    }

    /// A certificate for a client of that name.
    pub(crate) fn issue_client(&self, name: &str, serial: u8) -> TestCertificate {
        self.issue_with(&[], |params| {
            params.distinguished_name = common_name(name);
            params.serial_number = Some(SerialNumber::from_slice(&[serial]));
        })
    }

    /// A list that revokes these serial numbers.
    pub(crate) fn revoke(&self, serials: &[u8]) -> String {
        let revoked = serials.iter().map(|serial| RevokedCertParams {
            serial_number: SerialNumber::from_slice(&[*serial]),
            revocation_time: date_time_ymd(2020, 1, 1),
            reason_code: None,
            invalidity_date: None,
        });
        let list = CertificateRevocationListParams {
            this_update: date_time_ymd(2020, 1, 1),
            next_update: date_time_ymd(2200, 1, 1),
            crl_number: SerialNumber::from_slice(&[1]),
            issuing_distribution_point: None,
            revoked_certs: revoked.collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        list.signed_by(&self.0).unwrap().pem().unwrap()
    }

    /// A client that trusts it, and keeps its sessions for the next connection.
    pub(crate) fn client(&self) -> TlsClient {
        self.client_with(None)
    }

    /// The same with a certificate of its own.
    pub(crate) fn client_with(&self, own: Option<&TestCertificate>) -> TlsClient {
        let mut roots = RootCertStore::empty();
        roots.add(self.0.der().clone()).unwrap();
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let config = match own {
            None => builder.with_no_client_auth(),
            Some(own) => {
                let (chain, key) = own.for_rustls();
                builder.with_client_auth_cert(chain, key).unwrap()
            }
        };
        TlsClient(Arc::new(config))
    }
}

fn common_name(name: &str) -> DistinguishedName {
    let mut names = DistinguishedName::new();
    names.push(DnType::CommonName, name);
    names
}

/// Makes sessions with servers.
#[derive(Clone)]
pub(crate) struct TlsClient(Arc<ClientConfig>);

impl TlsClient {
    /// The same client, which offers these protocols (ALPN).
    pub(crate) fn offering(&self, protocols: &[&str]) -> Self {
        let mut config = (*self.0).clone();
        let protocols = protocols.iter().map(|it| it.as_bytes().to_vec());
        config.alpn_protocols = protocols.collect();
        Self(Arc::new(config))
    }

    /// The certificate that a server shows in a full handshake, in DER.
    pub(crate) fn shown_certificate(&self, port: u16, host: &str) -> Vec<u8> {
        let mut config = (*self.0).clone();
        // A resumed session has the certificate of its first handshake.
        config.resumption = Resumption::disabled();
        let client = Self(Arc::new(config));
        let session = client.try_connect(port, host).unwrap();
        session.conn.peer_certificates().unwrap()[0].to_vec()
    }
}

/// A session of a client.
pub(crate) type TlsSession = StreamOwned<ClientConnection, TcpStream>;

impl TlsClient {
    /// A connection that asks for `host`; its handshake is complete.
    ///
    /// # Errors
    /// The handshake fails, on either side.
    pub(crate) fn try_connect(&self, port: u16, host: &str) -> io::Result<TlsSession> {
        self.try_connect_behind(port, host, b"")
    }

    /// The same with bytes before the handshake.
    pub(crate) fn try_connect_behind(
        &self,
        port: u16,
        host: &str,
        before: &[u8],
    ) -> io::Result<TlsSession> {
        let mut stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        stream.write_all(before)?;
        let name = ServerName::try_from(host.to_owned()).unwrap();
        let session = ClientConnection::new(Arc::clone(&self.0), name);
        let mut session = session.map_err(io::Error::other)?;
        while session.is_handshaking() {
            session.complete_io(&mut stream)?;
        }
        Ok(StreamOwned::new(session, stream))
    }

    pub(crate) fn connect(&self, port: u16, host: &str) -> RawClient {
        let session = self.try_connect(port, host);
        RawClient::over(Box::new(
            session.unwrap_or_else(|error| panic!("{host}: {error}")),
        ))
    }

    /// One GET on its own connection.
    pub(crate) fn get(&self, port: u16, host: &str, path: &str) -> Response {
        let mut client = self.connect(port, host);
        client.send(format!(
            "GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n"
        ));
        client.response()
    }

    /// The error of a handshake that the server refuses. With TLS 1.3 a client learns of it when it
    /// reads.
    pub(crate) fn refusal(&self, port: u16, host: &str) -> String {
        let read = |mut session: TlsSession| session.read(&mut [0; 16]);
        let outcome = self.try_connect(port, host).and_then(read);
        outcome.expect_err("the server refuses").to_string()
    }
}

/// Whether a session was resumed.
pub(crate) fn is_resumed(session: &TlsSession) -> bool {
    session.conn.handshake_kind() == Some(HandshakeKind::Resumed)
}

impl TestCertificate {
    /// The certificate in DER.
    pub(crate) fn der(&self) -> Vec<u8> {
        let der = CertificateDer::from_pem_slice(self.chain.as_bytes());
        der.unwrap().to_vec()
    }

    /// Chain and key, for a peer.
    pub(super) fn for_rustls(&self) -> (Vec<CertificateDer<'static>>, PrivateKeyDer<'static>) {
        let chain = CertificateDer::pem_slice_iter(self.chain.as_bytes());
        let key = PrivateKeyDer::from_pem_slice(self.key.as_bytes());
        (chain.collect::<Result<_, _>>().unwrap(), key.unwrap())
    }
}

impl ClientStream for TlsSession {
    fn set_patience(&self, patience: Duration) {
        ClientStream::set_patience(&self.sock, patience);
    }
    fn close_write(&self) {
        ClientStream::close_write(&self.sock);
    }
    fn reset_on_close(&self) {
        ClientStream::reset_on_close(&self.sock);
    }
}
