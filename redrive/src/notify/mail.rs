//! Notices by mail: plain text over SMTP.
//!
//! Addresses and headers are made by lettre's own types, so that no method name or error text can add a header or a
//! recipient. One connection for each mail: there are few. All recipients get one mail; if the server refuses one of them,
//! nobody gets it and the error names the address.

use std::path::PathBuf;
use std::time::Duration;

use lettre::message::header::{ContentType, HeaderName, HeaderValue};
use lettre::message::{Mailbox, MessageBuilder};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::{AsyncSmtpTransport, AsyncTransport, Tokio1Executor};
use serde::{Deserialize, Serialize};

use crate::duration;
use crate::error::{Problems, chain};

use super::{Message, NotifyError, Secret, check_timeout};

/// Mail over SMTP.
///
/// ```
/// use redrive::notify::Mail;
///
/// let mail: Mail = serde_json::from_str(
///     r#"{"host": "smtp.example.org", "user": "redrive", "password": "x", "from": "redrive@example.org", "to": ["ops@example.org"]}"#,
/// )?;
/// assert_eq!(mail.port(), 587);
/// # Ok::<(), serde_json::Error>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Mail {
    /// The SMTP server. Default: `localhost`.
    pub host: String,
    /// Its port. Default: 587 for `starttls`, 465 for `tls`, 25 for `none`.
    pub port: Option<u16>,
    /// How the connection is secured. Default: `starttls`.
    pub encryption: Encryption,
    /// Who we are to the server. Default: nobody, without a password.
    pub user: Option<String>,
    /// The password of `user`. Default: none.
    pub password: Option<Secret>,
    /// The sender: `redrive@example.org`, or `Redrive <redrive@example.org>`. Default: none, it must be given.
    pub from: String,
    /// Who gets it. Default: nobody, at least one must be given.
    pub to: Vec<String>,
    /// How long the server may take for a mail, from connecting to its last answer. Default: 30 s.
    #[serde(with = "duration")]
    pub timeout: Duration,
    /// A file of PEM certificates that are trusted beside those of the system. Default: none.
    pub ca_file: Option<PathBuf>,
}

/// How a connection to a mail server is secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Encryption {
    /// It begins in the clear and turns to TLS before anything is said; without TLS nothing is sent.
    #[default]
    Starttls,
    /// TLS from the start.
    Tls,
    /// None: for a server on this machine or in a network of one's own. No password is sent.
    None,
}

impl Default for Mail {
    fn default() -> Self {
        Self {
            host: "localhost".into(),
            port: None,
            encryption: Encryption::default(),
            user: None,
            password: None,
            from: String::new(),
            to: Vec::new(),
            timeout: Duration::from_secs(30),
            ca_file: None,
        }
    }
}

impl Mail {
    /// The port that is used.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.encryption {
            Encryption::Starttls => 587,
            Encryption::Tls => 465,
            Encryption::None => 25,
        })
    }

    /// Where it goes, for logs.
    pub(super) fn target(&self) -> String {
        format!("{}:{}", self.host, self.port())
    }

    pub(super) fn check(&self, problems: &mut Problems) {
        problems.require(!self.host.trim().is_empty(), "host", || "must be the name of a mail server".into());
        if let Err(why) = mailbox(&self.from) {
            problems.add("from", why);
        }
        problems.require(!self.to.is_empty(), "to", || "must have at least one address".into());
        for (i, to) in self.to.iter().enumerate() {
            if let Err(why) = mailbox(to) {
                problems.add(format!("to.{i}"), why);
            }
        }
        problems.require(self.user.is_some() == self.password.is_some(), "password", || {
            "user and password go together: give both or none".into()
        });
        problems.require(self.password.is_none() || self.encryption != Encryption::None, "encryption", || {
            "must be starttls or tls if there is a password: it would be sent in the clear".into()
        });
        check_timeout(self.timeout, problems);
    }

    /// Sends a message; when this returns, the server has taken it.
    pub(super) async fn send(&self, message: &Message) -> Result<(), NotifyError> {
        let mail = self.render(message)?;
        let transport = self.transport().await?;
        match tokio::time::timeout(self.timeout, transport.send(mail)).await {
            Ok(Ok(_)) => Ok(()),
            Ok(Err(e)) => Err(NotifyError::new(chain(&e))),
            Err(_) => Err(NotifyError::new(format!("no answer within {}", humantime::format_duration(self.timeout)))),
        }
    }

    fn render(&self, message: &Message) -> Result<lettre::Message, NotifyError> {
        let mut mail: MessageBuilder = lettre::Message::builder().from(mailbox(&self.from).map_err(NotifyError::new)?);
        for to in &self.to {
            mail = mail.to(mailbox(to).map_err(NotifyError::new)?);
        }
        // Written by a program: no answers of absent people, please (RFC 3834).
        let automatic = HeaderName::new_from_ascii_str("Auto-Submitted");
        mail.subject(&*message.subject)
            .raw_header(HeaderValue::new(automatic, "auto-generated".into()))
            .header(ContentType::TEXT_PLAIN)
            .body(message.text.clone())
            .map_err(|e| NotifyError::new(chain(&e)))
    }

    async fn transport(&self) -> Result<AsyncSmtpTransport<Tokio1Executor>, NotifyError> {
        let tls = match self.encryption {
            Encryption::None => Tls::None,
            Encryption::Starttls => Tls::Required(self.tls().await?),
            Encryption::Tls => Tls::Wrapper(self.tls().await?),
        };
        // "Dangerous" means without TLS, which is set here.
        let mut builder = AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(&*self.host)
            .port(self.port())
            .timeout(Some(self.timeout))
            .tls(tls);
        if let (Some(user), Some(password)) = (&self.user, &self.password) {
            builder = builder.credentials(Credentials::new(user.clone(), password.reveal().to_owned()));
        }
        Ok(builder.build())
    }

    async fn tls(&self) -> Result<TlsParameters, NotifyError> {
        let mut builder = TlsParameters::builder(self.host.clone());
        if let Some(file) = &self.ca_file {
            let shown = file.display();
            let pem = tokio::fs::read(file).await.map_err(|e| NotifyError::new(format!("reading {shown}: {e}")))?;
            let trusted = Certificate::from_pem(&pem)
                .map_err(|e| NotifyError::new(format!("{shown} has no certificates: {}", chain(&e))))?;
            builder = builder.add_root_certificate(trusted);
        }
        builder.build().map_err(|e| NotifyError::new(chain(&e)))
    }
}

fn mailbox(address: &str) -> Result<Mailbox, String> {
    address.parse().map_err(|e| format!("{address:?} is not a mail address: {e}"))
}
