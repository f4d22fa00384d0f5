//! What a query or a form says: names and values, of which one name may have several. What is empty is not said: a form sends
//! all of its fields.
//!
//! Some forms are read before anybody knows who sends them: how many bytes and how many names that may be is limited
//! ([`routes`](super::routes) has the bytes).

use axum::body::Bytes;
use axum::extract::{FromRequest, FromRequestParts, Request};
use axum::http::StatusCode;
use axum::http::request::Parts;
use std::convert::Infallible;

use crate::server::problem::{Answer, Problem, unreadable};

/// Names of one form or query. An address has no room for as many ids as this.
const MOST: usize = 5_000;

/// Names and values.
#[derive(Clone, Debug, Default)]
pub(crate) struct Fields(Vec<(String, String)>);

impl Fields {
    /// The first of them, if there are too many.
    pub(super) fn read(bytes: &[u8]) -> Self {
        let all = url::form_urlencoded::parse(bytes).into_owned().take(MOST);
        Self(all.map(|(name, value)| (name, value.trim().to_owned())).filter(|(_, value)| !value.is_empty()).collect())
    }

    /// All of a form. One that has too much is refused: something would be done to a part of what was ticked.
    fn of_form(bytes: &[u8]) -> Answer<Self> {
        let names = bytes.split(|byte| *byte == b'&').take(MOST + 1).count();
        if names > MOST {
            let detail = format!("a form has at most {MOST} fields");
            return Err(Problem::new(StatusCode::PAYLOAD_TOO_LARGE, "too_many_fields", detail));
        }
        Ok(Self::read(bytes))
    }

    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.all(name).next()
    }

    /// For templates: what a field of this name shows.
    pub(crate) fn text(&self, name: &str) -> &str {
        self.get(name).unwrap_or_default()
    }

    pub(crate) fn is(&self, name: &str, value: &str) -> bool {
        self.get(name) == Some(value)
    }

    pub(crate) fn all<'f>(&'f self, name: &str) -> impl Iterator<Item = &'f str> {
        self.0.iter().filter(move |(known, _)| known == name).map(|(_, value)| value.as_str())
    }

    /// A value that must be something: a number, an id, a role.
    pub(crate) fn parsed<T: std::str::FromStr<Err: std::fmt::Display>>(&self, name: &str) -> Answer<Option<T>> {
        let wrong = |e| Problem::new(StatusCode::BAD_REQUEST, "not_understood", format!("{name}: {e}"));
        self.get(name).map(|text| text.parse().map_err(wrong)).transpose()
    }

    /// Those of some names.
    pub(crate) fn only(&self, names: &[&str]) -> Self {
        Self(self.0.iter().filter(|(name, _)| names.contains(&&**name)).cloned().collect())
    }

    /// With another value, or without any.
    pub(crate) fn with(&self, name: &str, value: Option<&str>) -> Self {
        let mut all: Vec<_> = self.0.iter().filter(|(known, _)| known != name).cloned().collect();
        all.extend(value.map(|value| (name.to_owned(), value.to_owned())));
        Self(all)
    }

    /// As a query, with its question mark if there is anything.
    pub(crate) fn query(&self) -> String {
        let mut all = url::form_urlencoded::Serializer::new(String::new());
        all.extend_pairs(&self.0);
        let all = all.finish();
        if all.is_empty() { all } else { format!("?{all}") }
    }

    pub(crate) fn pairs(&self) -> &[(String, String)] {
        &self.0
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

/// A text as one segment of a path.
pub(super) fn segment(text: &str) -> String {
    let all: String = url::form_urlencoded::byte_serialize(text.as_bytes()).collect();
    all.replace('+', "%20") // a plus of the text is %2B already
}

/// The query of a page.
impl<S: Sync> FromRequestParts<S> for Fields {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(Self::read(parts.uri.query().unwrap_or_default().as_bytes()))
    }
}

/// What a form says.
pub(super) struct Form(pub(super) Fields);

impl<S: Send + Sync> FromRequest<S> for Form {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let bytes = Bytes::from_request(request, state).await.map_err(|e| unreadable(&e))?;
        Fields::of_form(&bytes).map(Self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_form_of_too_many_fields_is_refused_and_a_query_is_cut() {
        let many = |n| "a=1&".repeat(n) + "b=2";
        assert_eq!(Fields::of_form(many(MOST - 1).as_bytes()).unwrap().get("b"), Some("2"));
        assert_eq!(Fields::of_form(many(MOST).as_bytes()).unwrap_err().status, 413);
        assert_eq!(Fields::of_form("&".repeat(1 << 20).as_bytes()).unwrap_err().status, 413);
        assert_eq!(Fields::read(many(MOST).as_bytes()).pairs().len(), MOST);
    }

    #[test]
    fn what_is_empty_is_not_said_and_a_query_comes_back_as_it_was() {
        let fields = Fields::read(b"a=1&b=&id=1&id=2&c=x+%26%3D");
        assert_eq!((fields.get("a"), fields.get("b"), fields.text("c")), (Some("1"), None, "x &="));
        assert_eq!(fields.all("id").collect::<Vec<_>>(), ["1", "2"]);
        assert_eq!(fields.query(), "?a=1&id=1&id=2&c=x+%26%3D");
        assert_eq!(segment("a b+c/d?é"), "a%20b%2Bc%2Fd%3F%C3%A9");
        assert_eq!(fields.only(&["a"]).with("a", None).query(), "");
        assert!(fields.parsed::<u32>("c").is_err() && fields.parsed::<u32>("b").unwrap().is_none());
    }
}
