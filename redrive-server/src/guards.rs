//! Guarded tables of the settings: their handlers are services that are called over HTTP.
//!
//! Each call is a POST of `{"dataId": 10, "serviceName": "…", "table": "…"}`, with the limits, the address guard and the
//! signature of HTTP tasks. A handler that does not answer, or not with a 2xx, has said no.

use std::sync::atomic::{AtomicU64, Ordering};

use redrive::guard::{
    BoxError, BusinessDatabase, GuardHandler, GuardedTable, Guards, GuardsBuilder, Inspection, RowId,
};
use redrive::notify::{Channel, Mail};
use redrive::{Clock, Error, GuardedTableSettings, Result, Settings, Store, condition};
use serde_json::{Value, json};

use crate::http::{Answer, HttpDelivery, HttpRequest};

/// The guards of these settings, not started yet. One that is wrong does not keep the others from starting.
pub(crate) fn of(settings: &Settings, store: &Store, delivery: &HttpDelivery) -> Result<GuardsBuilder> {
    let mut builder = Guards::builder(store.clone()).lenient(true).scan_interval(settings.guard.scan_interval);
    if let Some(mail) = mail(settings)? {
        builder = builder.mail(mail);
    }
    for (name, table) in &settings.guards {
        builder = builder.guard(
            table.guard(name),
            database(settings, table, store),
            HttpHandler::new(name, table.clone(), delivery.clone()),
        );
    }
    Ok(builder)
}

/// The same for a command line: it looks and does what it is told, but polls nothing and adds no columns.
pub(crate) async fn by_hand(settings: &Settings, store: &Store) -> Result<Guards> {
    let mut settings = settings.clone();
    for table in settings.guards.values_mut() {
        (table.add_columns, table.create_index) = (false, false);
    }
    of(&settings, store, &HttpDelivery::new(&settings)?)?.by_hand().start().await
}

/// What a guarded table lacks; `None` if there is no guard of this name. Changes nothing.
pub(crate) async fn inspect(settings: &Settings, store: &Store, service: &str) -> Result<Option<Inspection>> {
    let named = |(name, table): &(&String, &GuardedTableSettings)| table.service_name(name) == service;
    match settings.guards.iter().find(named) {
        Some((name, table)) => Ok(Some(table.guard(name).inspect(database(settings, table, store)).await?)),
        None => Ok(None),
    }
}

fn database(settings: &Settings, table: &GuardedTableSettings, store: &Store) -> BusinessDatabase {
    let database: BusinessDatabase =
        table.database.as_ref().map_or_else(|| BusinessDatabase::of(store), |url| url.as_str().into());
    database.answer_timeout(settings.guard.answer_timeout)
}

/// Who is told of rows that need people, and by which server.
fn mail(settings: &Settings) -> Result<Option<Mail>> {
    let guard = &settings.guard;
    let channels = settings.notify.iter().flat_map(|notify| &notify.channels);
    let mut mails = channels.filter_map(|(name, channel)| match channel {
        Channel::Mail(mail) => Some((name, mail)),
        _ => None,
    });
    let found = match &guard.mail_channel {
        Some(wanted) => {
            let missing =
                || Error::invalid("guard.mail_channel", format!("there is no channel {wanted:?} of type mail"));
            Some(mails.find(|(name, _)| *name == wanted).ok_or_else(missing)?)
        }
        None => mails.next(),
    };
    if mails.next().is_some() && guard.mail_channel.is_none() {
        return Err(Error::invalid("guard.mail_channel", "must say which of the channels of type mail is meant"));
    }
    let Some((_, mail)) = found else {
        let asked = guard.mail_from.is_some() || !guard.mail_to.is_empty();
        let why = "there is no mail server: give a channel of type mail under [notify.channels]";
        return if asked { Err(Error::invalid("guard.mail_to", why)) } else { Ok(None) };
    };
    let mut mail = mail.clone();
    guard.mail_from.iter().for_each(|from| mail.from.clone_from(from));
    if !guard.mail_to.is_empty() {
        mail.to.clone_from(&guard.mail_to);
    }
    Ok(Some(mail))
}

/// A table's handlers.
struct HttpHandler {
    /// Of the section.
    name: String,
    service_name: String,
    settings: GuardedTableSettings,
    delivery: HttpDelivery,
    calls: AtomicU64,
}

impl HttpHandler {
    fn new(name: &str, settings: GuardedTableSettings, delivery: HttpDelivery) -> Self {
        let service_name = settings.service_name(name).to_owned();
        Self { name: name.into(), service_name, settings, delivery, calls: AtomicU64::new(0) }
    }

    async fn call(&self, url: &str, id: &RowId) -> Result<Answer, BoxError> {
        let body = json!({ "dataId": id, "serviceName": self.service_name, "table": self.settings.table });
        let mut request = match &self.settings.target {
            Some(target) => HttpRequest::to_target(target, url),
            None => HttpRequest::post(url),
        }
        .with_body(body.to_string());
        request.headers.insert("content-type".into(), "application/json".into());
        let n = self.calls.fetch_add(1, Ordering::Relaxed);
        let id = format!("guard-{}-{}-{n}", self.name, Clock::system().now().as_millis());
        Ok(self.delivery.deliver_alone(id, &request, self.settings.handle_timeout).await?)
    }
}

impl GuardHandler for HttpHandler {
    type Id = RowId;

    async fn check_status(&self, id: &RowId) -> Result<bool, BoxError> {
        let answer = self.call(&self.settings.check_url, id).await?;
        is_well(self.settings.check_condition.as_deref(), &answer).ok_or_else(|| answer.said().into())
    }

    async fn handle(&self, id: &RowId) -> Result<bool, BoxError> {
        let answer = self.call(&self.settings.handle_url, id).await?;
        if !answer.is_success() {
            return Err(answer.said().into());
        }
        Ok(word(&answer.body_value()) != Some(false))
    }

    fn manual_success_route(&self) -> String {
        self.settings.manual_success_route.clone()
    }

    async fn manual_success(&self, table: &GuardedTable, id: &RowId) -> Result<(), BoxError> {
        if let Some(url) = &self.settings.manual_success_url {
            let answer = self.call(url, id).await?;
            if !answer.is_success() {
                return Err(answer.said().into());
            }
        }
        Ok(table.processing_successful(id).await?)
    }
}

/// Whether a check says that all is well; `None`: it says nothing, as whoever could not look has not said no. With a condition a 404 may say no,
/// without one only a 2xx can.
fn is_well(condition: Option<&str>, answer: &Answer) -> Option<bool> {
    let (is_well, is_word) = match condition {
        Some(cel) => (meets(cel, answer), !answer.is_passing()),
        None => (answer.is_success() && word(&answer.body_value()) == Some(true), answer.is_success()),
    };
    (is_well || is_word).then_some(is_well)
}

fn meets(cel: &str, answer: &Answer) -> bool {
    let (status, headers) = (json!(answer.status), json!(answer.headers));
    condition::holds(cel, &[("status", &status), ("headers", &headers), ("body", &answer.body_value())])
}

/// What a body says: `true`, `{"success": true}`, or `{"code": 200, "data": true}`.
fn word(body: &Value) -> Option<bool> {
    body.as_bool().or_else(|| ["success", "data"].iter().find_map(|field| body.get(*field)?.as_bool()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_that_could_not_look_has_not_said_no() {
        let answer = |status, body: &str| Answer { status, body: Some(body.into()), ..Answer::default() };
        let paid = Some("status == 200 && body.paid == true");
        for (condition, status, body, said) in [
            (paid, 200, r#"{"paid": true}"#, Some(true)),
            (paid, 200, r#"{"paid": false}"#, Some(false)),
            (paid, 404, "", Some(false)),
            (paid, 503, "", None),
            (paid, 429, "", None),
            (Some("status == 503"), 503, "", Some(true)),
            (None, 200, "true", Some(true)),
            (None, 200, "false", Some(false)),
            (None, 404, "", None),
            (None, 503, "true", None),
        ] {
            assert_eq!(is_well(condition, &answer(status, body)), said, "{condition:?} {status} {body}");
        }
    }

    #[test]
    fn a_word_is_found_where_services_put_it() {
        for (body, said) in [
            (json!(true), Some(true)),
            (json!({ "success": false, "data": true }), Some(false)),
            (json!({ "code": 200, "msg": "ok", "data": true }), Some(true)),
            (json!({ "code": 200, "data": { "id": 1 } }), None),
            (json!("true"), None),
            (json!(null), None),
        ] {
            assert_eq!(word(&body), said, "{body}");
        }
    }

    #[test]
    fn mails_go_by_the_channel_that_is_meant() {
        let told = |toml: &str| mail(&Settings::parse(toml, [].into_iter()).unwrap());
        let channel = |name: &str| {
            format!(
                "[notify.channels.{name}]\ntype = 'mail'\nhost = '{name}.example.org'\nfrom = 'a@b.c'\nto = ['d@e.f']\n"
            )
        };
        assert_eq!(told("").unwrap(), None);
        let one = told(&format!("{}[guard]\nmail_to = ['ops@e.f']", channel("one"))).unwrap().unwrap();
        assert_eq!((&*one.host, &*one.from, &*one.to), ("one.example.org", "a@b.c", &["ops@e.f".to_owned()][..]));
        let two = format!("{}{}", channel("one"), channel("two"));
        assert!(told(&two).unwrap_err().to_string().contains("which"));
        let two = told(&format!("{two}[guard]\nmail_channel = 'two'\nmail_from = 'x@y.z'")).unwrap().unwrap();
        assert_eq!((&*two.host, &*two.from), ("two.example.org", "x@y.z"));
        for wrong in ["mail_channel = 'none'", "mail_to = ['ops@e.f']"] {
            assert!(told(&format!("[guard]\n{wrong}")).unwrap_err().to_string().contains("channel"), "{wrong}");
        }
    }
}
