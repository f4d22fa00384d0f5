//! Who is logged in: a cookie that needs no memory of the server.
//!
//! *State.* The cookie is the token that somebody logged in with, and until when, sealed with a key that all servers of a
//! database share ([`Store::console_key`](redrive::Store::console_key)). A server that restarts, or another one behind the same
//! proxy, knows it again.
//!
//! *Invariants.* Each request looks at the token anew, so whoever revokes it ends its sessions, and its role is the one that it
//! has now. The cookie is no token: the API takes it for looking only, and it is of no use after [`FOR`]. Signing a name
//! instead would let everybody log in who can read the key in the database; what is sealed here cannot be made without a token.
//!
//! *Failure.* A cookie that cannot be opened (the key is another, it was changed on its way) is as good as none.

use std::time::Duration;

use aes_gcm::aead::{Aead, Generate as _, Key, Payload};
use aes_gcm::{Aes256Gcm, Nonce};
use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use redrive::Timestamp;
use sha2::Sha256;

/// How long somebody stays logged in.
pub(crate) const FOR: Duration = Duration::from_secs(12 * 3600);
/// What the sealed text is for, so that nothing else sealed with this key could pass for it.
const PURPOSE: &[u8] = b"redrive console session";
const NONCE: usize = 12;

/// Seals and opens cookies.
pub(crate) struct Sealer(Aes256Gcm);

impl Sealer {
    pub(crate) fn new(key: [u8; 32]) -> Self {
        Self(Aes256Gcm::new(&Key::<Aes256Gcm>::from(key)))
    }

    /// `None`: the system gives no random numbers.
    pub(crate) fn seal(&self, token: &str, now: Timestamp) -> Option<String> {
        let text = format!("{} {token}", (now + FOR).as_millis());
        let nonce = Nonce::try_generate().ok()?;
        let sealed = self.0.encrypt(&nonce, Payload { msg: text.as_bytes(), aad: PURPOSE }).ok()?;
        Some(URL_SAFE_NO_PAD.encode([nonce.as_slice(), &sealed].concat()))
    }

    /// The token, while the session lasts.
    pub(crate) fn open(&self, cookie: &str, now: Timestamp) -> Option<String> {
        let both = URL_SAFE_NO_PAD.decode(cookie).ok()?;
        let (nonce, sealed) = both.split_at_checked(NONCE)?;
        let nonce = Nonce::try_from(nonce).ok()?;
        let text = String::from_utf8(self.0.decrypt(&nonce, Payload { msg: sealed, aad: PURPOSE }).ok()?).ok()?;
        let (until, token) = text.split_once(' ')?;
        (now.as_millis() < until.parse().ok()?).then(|| token.to_owned())
    }
}

/// What every form of this session must send along. Nobody knows it who does not know the cookie.
pub(crate) fn csrf(cookie: &str) -> String {
    mac(cookie).map(|mac| URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes())).unwrap_or_default()
}

/// Whether a form is of this session. In constant time.
pub(crate) fn is_csrf(cookie: &str, sent: &str) -> bool {
    let sent = URL_SAFE_NO_PAD.decode(sent).unwrap_or_default();
    mac(cookie).is_some_and(|mac| mac.verify_slice(&sent).is_ok())
}

fn mac(cookie: &str) -> Option<Hmac<Sha256>> {
    let mut mac = Hmac::<Sha256>::new_from_slice(cookie.as_bytes()).ok()?;
    mac.update(b"redrive console forms");
    Some(mac)
}

#[cfg(test)]
mod tests {
    use super::*;

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    #[test]
    fn a_cookie_opens_with_its_key_until_its_time() {
        let sealer = Sealer::new([1; 32]);
        let cookie = sealer.seal("rdr_a_b", NOW).unwrap();
        assert!(!cookie.contains("rdr_"));
        assert_eq!(sealer.open(&cookie, NOW).as_deref(), Some("rdr_a_b"));
        assert_eq!(sealer.open(&cookie, NOW + FOR), None, "its time is up");
        assert_eq!(Sealer::new([2; 32]).open(&cookie, NOW), None, "another key");
        let mut changed = cookie.clone().into_bytes();
        changed[20] ^= 1;
        assert_eq!(sealer.open(&String::from_utf8_lossy(&changed), NOW), None);
        for wrong in ["", "x", "AAAA", "no base64!"] {
            assert_eq!(sealer.open(wrong, NOW), None, "{wrong}");
        }
    }

    #[test]
    fn a_form_is_of_one_session() {
        assert!(is_csrf("cookie", &csrf("cookie")));
        assert!(!is_csrf("cookie", &csrf("another")) && !is_csrf("cookie", "") && !is_csrf("", &csrf("cookie")));
    }
}
