//! One order: from the names to the certificate (RFC 8555 §7.4).

use std::sync::Arc;
use std::time::Duration;

use instant_acme::{
    AuthorizationStatus, ChallengeStatus, Identifier, NewOrder, Order, OrderStatus, RetryPolicy,
};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};
use zeroize::Zeroizing;

use super::account::{CertificateAuthority, Session, certificate_identifier};
use super::responder::{ChallengeResponse, Responder, challenge_type};
use crate::callbacks::Callbacks;
use crate::certificate::{Certificate, chain_mentions};
use crate::challenge::ChallengeStore;
use crate::error::{AcmeError, describe, printable};
use crate::name::CertificateName;
use crate::settings::{AcmeSettings, ChallengeKind};
use crate::storage::Storage;

/// What orders share.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderContext<'a> {
    pub(crate) settings: &'a AcmeSettings,
    pub(crate) storage: &'a Arc<dyn Storage>,
    pub(crate) challenges: &'a Arc<ChallengeStore>,
    pub(crate) callbacks: &'a Callbacks,
}

/// What to order.
#[derive(Debug, Clone, Copy)]
pub(crate) struct OrderRequest<'a> {
    pub(crate) name: &'a CertificateName,
    /// Failed attempts before this one: each begins with another kind of challenge.
    pub(crate) attempt: usize,
    /// Identifier of the certificate that is replaced, if this authority issued it.
    pub(crate) replaces: Option<&'a str>,
}

impl CertificateAuthority {
    /// Orders a certificate. An account that the authority does not know is created anew, once.
    pub(crate) async fn order(
        &self,
        context: OrderContext<'_>,
        request: OrderRequest<'_>,
    ) -> Result<Certificate, AcmeError> {
        if self.directory.is_public() && !request.name.is_public() {
            return Err(AcmeError::NotPublic);
        }
        let session = self.session(context.storage).await?;
        match self.order_with(&session, context, request).await {
            Err(error) if error.is_problem("accountDoesNotExist") => {
                self.forget_account(context.storage, &session).await?;
                let session = self.session(context.storage).await?;
                self.order_with(&session, context, request).await
            }
            result => result,
        }
    }

    async fn order_with(
        &self,
        session: &Session,
        context: OrderContext<'_>,
        request: OrderRequest<'_>,
    ) -> Result<Certificate, AcmeError> {
        let mut order = self.place(session, request).await?;
        if order.state().status == OrderStatus::Pending {
            self.authorize(session, &mut order, context, request)
                .await?;
        }
        let (chain, key) = self
            .finalize(session, &mut order, context, request.name)
            .await?;
        let directory = Arc::from(&*self.directory.url);
        Ok(Certificate::parse(request.name, &chain, key, directory)?)
    }

    /// Creates the order. Without `replaces` if the authority does not accept that.
    async fn place(
        &self,
        session: &Session,
        request: OrderRequest<'_>,
    ) -> Result<Order, AcmeError> {
        let identifier = match request.name.ip() {
            Some(ip) => Identifier::Ip(ip),
            None => Identifier::Dns(request.name.as_str().to_owned()),
        };
        let identifiers = [identifier];
        let mut new_order = NewOrder::new(&identifiers);
        if let Some(profile) = &self.directory.profile {
            check_profile(session, profile)?;
            new_order = new_order.profile(profile);
        }
        if let Some(id) = request.replaces.and_then(certificate_identifier) {
            let replacing = NewOrder::new(&identifiers).replaces(id);
            let replacing = match &self.directory.profile {
                Some(profile) => replacing.profile(profile),
                None => replacing,
            };
            match with_fresh_nonces!(session.account.new_order(&replacing)) {
                Ok(order) => return Ok(order),
                Err(error @ AcmeError::Call(_)) if error.problem().is_none() => return Err(error),
                Err(error) if error.is_problem("rateLimited") => return Err(error),
                Err(error) if error.is_problem("accountDoesNotExist") => return Err(error),
                Err(error) => log::debug!("acme: ordered without `replaces`: {error}"),
            }
        }
        with_fresh_nonces!(session.account.new_order(&new_order))
    }

    /// Has the name validated. The response is removed whatever happens.
    async fn authorize(
        &self,
        session: &Session,
        order: &mut Order,
        context: OrderContext<'_>,
        request: OrderRequest<'_>,
    ) -> Result<(), AcmeError> {
        let timeout = context.settings.limits.validation_timeout;
        let responder = Responder {
            name: request.name,
            directory_url: &self.directory.url,
            store: context.challenges,
            storage: context.storage,
            dns_hook: context.callbacks.dns_hook.as_ref(),
            timeout,
        };
        let mut response = ChallengeResponse::default();
        let allowed = &context.settings.challenges;
        let validated = async {
            let attempt = request.attempt;
            let begun =
                begin_validation(&responder, order, allowed, attempt, &mut response).await?;
            match begun {
                Some(kind) => await_validation(session, order, kind, timeout, request.name).await,
                None => Ok(()),
            }
        }
        .await;
        responder.clean_up(response).await;
        validated
    }

    /// Sends the certificate request and fetches the chain. The key is new each time.
    async fn finalize(
        &self,
        session: &Session,
        order: &mut Order,
        context: OrderContext<'_>,
        name: &CertificateName,
    ) -> Result<(String, Zeroizing<String>), AcmeError> {
        let key = KeyPair::generate()?;
        let mut params = CertificateParams::new([name.as_str().to_owned()])?;
        params.distinguished_name = DistinguishedName::new();
        let request = params.serialize_request(&key)?;
        with_fresh_nonces!(order.finalize_csr(request.der()))?;
        let timeout = context.settings.limits.validation_timeout;
        let policy = poll_policy(timeout);
        let chain = with_fresh_nonces!(order.poll_certificate(&policy));
        let mut chain = chain.map_err(|error| timed(error, "issuing the certificate", timeout))?;
        if let Some(common_name) = &context.settings.preferred_chain
            && let Some(url) = &order.state().certificate
            && let Some(preferred) = find_chain(session, url, common_name).await
        {
            chain = preferred;
        }
        Ok((chain, Zeroizing::new(key.serialize_pem())))
    }
}

fn check_profile(session: &Session, profile: &str) -> Result<(), AcmeError> {
    let profiles: Vec<&str> = session.account.profiles().map(|meta| meta.name).collect();
    if profiles.contains(&profile) {
        return Ok(());
    }
    Err(AcmeError::Profile {
        profile: profile.to_owned(),
        available: if profiles.is_empty() {
            "none".to_owned()
        } else {
            printable(&profiles.join(", "))
        },
    })
}

/// Answers the challenge and says so to the authority; `None` if nothing needs to be validated.
async fn begin_validation(
    responder: &Responder<'_>,
    order: &mut Order,
    allowed: &[ChallengeKind],
    attempt: usize,
    response: &mut ChallengeResponse,
) -> Result<Option<ChallengeKind>, AcmeError> {
    with_fresh_nonces!(fetch_authorizations(order))?;
    let mut begun = None;
    // An order has one name, and so one authorization.
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let mut authorization = authorization?;
        if authorization.status == AuthorizationStatus::Valid {
            continue;
        }
        let kind = responder.choose(allowed, &authorization.challenges, attempt)?;
        let Some(mut challenge) = authorization.challenge(challenge_type(kind)) else {
            continue;
        };
        let key_authorization = challenge.key_authorization();
        let presented = responder.present(kind, &challenge.token, &key_authorization, response);
        presented.await?;
        if challenge.status == ChallengeStatus::Pending {
            with_fresh_nonces!(challenge.set_ready())?;
        }
        begun = Some(kind);
    }
    Ok(begun)
}

/// Fetches what the order has of authorizations; they stay in it.
async fn fetch_authorizations(order: &mut Order) -> Result<(), AcmeError> {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        authorization?;
    }
    Ok(())
}

/// Waits until the order is ready. A failure names what the authority saw.
async fn await_validation(
    session: &Session,
    order: &mut Order,
    kind: ChallengeKind,
    timeout: Duration,
    name: &CertificateName,
) -> Result<(), AcmeError> {
    let policy = poll_policy(timeout);
    let polled = with_fresh_nonces!(order.poll_ready(&policy));
    let error = match polled.map_err(|error| timed(error, "validating the name", timeout)) {
        Ok(OrderStatus::Ready) => return Ok(()),
        Ok(_) => None,
        Err(error @ AcmeError::Refused(_)) => Some(error),
        Err(error) => return Err(error),
    };
    let cause = match find_challenge_error(order, kind).await {
        Some(cause) => cause,
        None => error.map_or_else(
            || "it gives no reason".to_owned(),
            |error| error.to_string(),
        ),
    };
    let advice = match kind {
        ChallengeKind::DnsPersist01 => persistent_record(session, name),
        _ => String::new(),
    };
    let cause = format!("{cause}{advice}");
    Err(AcmeError::Validation { kind, cause })
}

async fn find_challenge_error(order: &mut Order, kind: ChallengeKind) -> Option<String> {
    let mut authorizations = order.authorizations();
    while let Some(Ok(mut authorization)) = authorizations.next().await {
        with_fresh_nonces!(async { authorization.refresh().await.map(drop) }).ok()?;
        let kind = challenge_type(kind);
        let challenge = authorization.challenges.iter().find(|c| c.r#type == kind);
        if let Some(problem) = challenge.and_then(|challenge| challenge.error.as_ref()) {
            return Some(describe(problem));
        }
    }
    None
}

/// The record of `dns-persist-01` that has to be set by hand (draft-ietf-acme-dns-persist §3).
fn persistent_record(session: &Session, name: &CertificateName) -> String {
    let issuer = session.transport.issuer_domain();
    let issuer = issuer.as_deref().unwrap_or("DOMAIN-OF-THE-AUTHORITY");
    let policy = if name.is_wildcard() {
        "; policy=wildcard"
    } else {
        ""
    };
    format!(
        "; set this TXT record once: _validation-persist.{} = \"{issuer}; accounturi={}{policy}\"",
        name.domain(),
        session.account.id()
    )
}

/// Finds the chain with a certificate of this name among those that the authority offers.
async fn find_chain(session: &Session, url: &str, common_name: &str) -> Option<String> {
    let default = session.transport.take_chain(url)?;
    if chain_mentions(&default.pem, common_name) {
        return None;
    }
    for alternate in default.alternates.into_iter().take(MAX_ALTERNATE_CHAINS) {
        // The library has no call for it. This one sends the signed request that is needed and
        // fails on the response, which is PEM; the transport has kept it.
        let _ = session.account.order(alternate.clone()).await;
        let chain = session.transport.take_chain(&alternate);
        if let Some(chain) = chain.filter(|chain| chain_mentions(&chain.pem, common_name)) {
            return Some(chain.pem);
        }
    }
    log::warn!("acme: no chain contains the preferred certificate (preferred_chain={common_name})");
    None
}

const MAX_ALTERNATE_CHAINS: usize = 8;

/// Polls at growing intervals; the authority's `Retry-After` replaces them.
fn poll_policy(timeout: Duration) -> RetryPolicy {
    let policy = RetryPolicy::new().initial_delay(Duration::from_millis(250));
    policy.backoff(1.3).timeout(timeout)
}

fn timed(error: AcmeError, step: &'static str, after: Duration) -> AcmeError {
    match error {
        AcmeError::Protocol(error) if matches!(*error, instant_acme::Error::Timeout(_)) => {
            AcmeError::Timeout { step, after }
        }
        error => error,
    }
}
