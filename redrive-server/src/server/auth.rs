//! Who asks, and what they may do.
//!
//! *Invariants.* Every route of the API asks for a token, and says which role it takes. Whoever is refused is told why, and so is
//! the audit. A token is never logged. Params are shown to operators and admins only.
//!
//! *State.* Tokens that were good a moment ago are remembered for a second, so that a thousand requests do not ask the database a
//! thousand times: a token that is revoked may work for that second more.
//!
//! *Failure.* An address from which many wrong tokens come has to wait: a token cannot be guessed, but trying should cost time,
//! and the audit must not grow by it. A good token is never refused for the sake of wrong ones: behind a proxy all have one
//! address. Nor must the audit grow by somebody who asks again and again for what their role does not allow: the first of a
//! minute are written down, all are refused. What is counted is in memory, by each server for itself.

use std::collections::HashMap;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use axum::extract::{ConnectInfo, FromRequestParts, OriginalUri};
use axum::http::request::Parts;
use axum::http::{StatusCode, header};
use redrive::Timestamp;
use redrive::store::{AuditEntry, Role, Token};
use sha2::{Digest as _, Sha256};

use super::App;
use super::problem::Problem;

/// So many wrong tokens from one address in [`WITHIN`], and it has to wait; so many refusals of one name are in the audit.
const MOST_WRONG: u32 = 20;
const WITHIN: Duration = Duration::from_secs(60);
/// Addresses and names that are remembered.
const MOST_REMEMBERED: usize = 10_000;

/// Who asks.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(crate) name: String,
    pub(crate) role: Role,
}

/// Someone who may look.
pub(super) struct Viewer(pub(super) Caller);
/// Someone who may also act on tasks and letters.
pub(super) struct Operator(pub(super) Caller);

/// Someone who may do everything.
pub(super) struct Admin(pub(super) Caller);

macro_rules! extracted {
    ($($role:ident)*) => {$(
        impl FromRequestParts<App> for $role {
            type Rejection = Problem;
            async fn from_request_parts(parts: &mut Parts, app: &App) -> Result<Self, Problem> {
                allowed(parts, app, Role::$role).await.map(Self)
            }
        }
    )*};
}
extracted!(Viewer Operator Admin);

/// Tokens that were good a moment ago, by their hash.
#[derive(Debug, Default)]
pub(super) struct Known(Mutex<HashMap<[u8; 32], (Token, Timestamp)>>);

impl Known {
    const FOR: Duration = Duration::from_secs(1);
    const MOST: usize = 1_000;

    fn get(&self, hash: &[u8; 32], now: Timestamp) -> Option<Token> {
        let known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let (token, until) = known.get(hash)?;
        (now < *until && token.is_good(now)).then(|| token.clone())
    }

    /// None: somebody has just lost theirs.
    pub(super) fn forget(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).clear();
    }

    fn put(&self, hash: [u8; 32], token: &Token, now: Timestamp) {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if known.len() >= Self::MOST {
            known.clear();
        }
        known.insert(hash, (token.clone(), now + Self::FOR));
    }
}

/// The token that was sent, if it is good.
pub(crate) async fn find(app: &App, sent: &str, now: Timestamp) -> redrive::Result<Option<Token>> {
    let hash: [u8; 32] = Sha256::digest(sent).into();
    if let Some(token) = app.known.get(&hash, now) {
        return Ok(Some(token));
    }
    let token = app.store.find_token(sent, now).await?;
    token.iter().for_each(|token| app.known.put(hash, token, now));
    Ok(token)
}

/// Who is counted.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
enum Who {
    /// Somebody whom nobody knows.
    Address(IpAddr),
    /// Somebody with a good token.
    Name(String),
}

impl Who {
    /// Who has one address of IPv6 has the 2^64 of its network, and could take another for each try.
    fn address(ip: IpAddr) -> Self {
        Self::Address(match ip.to_canonical() {
            IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() >> 64 << 64)),
            v4 @ IpAddr::V4(_) => v4,
        })
    }
}

/// What was refused, by who wanted it, since a time.
#[derive(Debug, Default)]
pub(super) struct Wrong(Mutex<HashMap<Who, (u32, Timestamp)>>);

impl Wrong {
    /// Counts one more. `false`: there are many already.
    fn note(&self, from: Who, now: Timestamp) -> bool {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if all.len() >= MOST_REMEMBERED {
            all.retain(|_, (_, since)| now.since(*since) < WITHIN);
        }
        if all.len() >= MOST_REMEMBERED {
            all.clear(); // an attack from many addresses must not fill the memory
        }
        let (n, since) = all.entry(from).or_insert((0, now));
        if now.since(*since) >= WITHIN {
            (*n, *since) = (0, now);
        }
        *n = n.saturating_add(1);
        *n <= MOST_WRONG
    }
}

/// The caller, if it may do what takes this role.
async fn allowed(parts: &Parts, app: &App, wanted: Role) -> Result<Caller, Problem> {
    if let Some(local) = parts.extensions.get::<Caller>() {
        return Ok(local.clone()); // the command line, in this process
    }
    let token = known(app, parts, sent(app, parts).await?.as_deref()).await?;
    may(app, parts, Caller { name: token.name, role: token.role }, wanted).await
}

/// The token that came along: as such, or in the cookie of a session. It may be a wrong one.
async fn sent(app: &App, parts: &Parts) -> Result<Option<String>, Problem> {
    let sent = parts.headers.get(header::AUTHORIZATION).and_then(|value| value.to_str().ok());
    let bearer = sent.and_then(|sent| sent.strip_prefix("Bearer ")).map(|sent| sent.trim().to_owned());
    match bearer {
        // A browser that is logged in to the console may look; whatever changes something takes more than a cookie.
        None if sent.is_none() && parts.method.is_safe() => crate::console::token_of(app, &parts.headers).await,
        bearer => Ok(bearer.or(sent.map(|_| String::new()))),
    }
}

/// Whether the caller of a request that is answered for long is still known: their token is neither revoked nor expired, and
/// their session has not ended.
pub(super) async fn still_knows(app: &App, parts: &Parts) -> Result<bool, Problem> {
    if parts.extensions.get::<Caller>().is_some() {
        return Ok(true);
    }
    match sent(app, parts).await? {
        Some(sent) => Ok(find(app, &sent, app.clock.now()).await?.is_some()),
        None => Ok(false),
    }
}

/// The token that was sent, if it is good. Wrong ones are counted and in the audit.
pub(crate) async fn known(app: &App, parts: &Parts, sent: Option<&str>) -> Result<Token, Problem> {
    let now = app.clock.now();
    let from = parts.extensions.get::<ConnectInfo<SocketAddr>>().map(|ConnectInfo(address)| address.ip());
    if let Some(sent) = sent
        && let Some(token) = find(app, sent, now).await?
    {
        return Ok(token);
    }
    if from.is_some_and(|from| !app.wrong.note(Who::address(from), now)) {
        let detail = "too many wrong tokens came from your address; wait a minute";
        return Err(Problem::new(StatusCode::TOO_MANY_REQUESTS, "too_many_wrong_tokens", detail));
    }
    let why = if sent.is_some() { "the token is not known, expired or revoked" } else { "there is no token" };
    let who = from.map_or("unknown".into(), |ip| ip.to_string());
    refuse(app, AuditEntry::new(&who, &action(parts), path(parts)).refused(why)).await;
    let detail = format!("{why}; send one as `Authorization: Bearer rdr_…` (redrive token create makes one)");
    Err(Problem::new(StatusCode::UNAUTHORIZED, "no_token", detail))
}

/// The caller, if its role is enough.
pub(crate) async fn may(app: &App, parts: &Parts, who: Caller, wanted: Role) -> Result<Caller, Problem> {
    match who.role >= wanted {
        true => Ok(who),
        false => Err(deny(app, &who, &action(parts), &path(parts), wanted).await),
    }
}

/// What somebody is told whose role is not enough; the audit is, too, unless they were refused many times just now.
pub(crate) async fn deny(app: &App, who: &Caller, action: &str, path: &str, wanted: Role) -> Problem {
    let why = format!("{path} takes {}, the token is of a {}", wanted.as_str(), who.role.as_str());
    if app.wrong.note(Who::Name(who.name.clone()), app.clock.now()) {
        refuse(app, AuditEntry::new(&who.name, action, path).refused(&why)).await;
    }
    Problem::new(StatusCode::FORBIDDEN, "not_allowed", why)
}

/// As the caller wrote it: the router may have taken off the beginning.
fn path(parts: &Parts) -> String {
    let whole = parts.extensions.get::<OriginalUri>().map(|OriginalUri(uri)| uri.path());
    whole.unwrap_or(parts.uri.path()).to_owned()
}

fn action(parts: &Parts) -> String {
    let through = if path(parts).starts_with(super::API) { "api" } else { "console" };
    format!("{through}.{}", parts.method.as_str().to_lowercase())
}

/// The audit knows of it. That it could not be told is no reason to let anybody in.
async fn refuse(app: &App, entry: AuditEntry) {
    if let Err(e) = app.store.audit(&entry, app.clock.now()).await {
        tracing::warn!(error = %e, who = entry.who, why = ?entry.outcome, "a refused call could not be written to the audit");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[test]
    fn a_network_of_ipv6_is_one_address() {
        let from = |ip: &str| Who::address(ip.parse().unwrap());
        assert_eq!(from("2001:db8:1:2::1"), from("2001:db8:1:2:ffff:ffff:ffff:ffff"));
        assert_ne!(from("2001:db8:1:2::1"), from("2001:db8:1:3::1"));
        assert_eq!(from("::ffff:192.0.2.1"), from("192.0.2.1"));
        assert_ne!(from("192.0.2.1"), from("192.0.2.2"));
    }

    #[test]
    fn twenty_of_a_minute_are_few() {
        let (wrong, eve) = (Wrong::default(), Who::Name("eve".into()));
        assert!((0..20).all(|_| wrong.note(eve.clone(), NOW)));
        assert!(!wrong.note(eve.clone(), NOW) && wrong.note(Who::Name("ada".into()), NOW));
        assert!(wrong.note(eve, NOW + WITHIN));
    }
}
