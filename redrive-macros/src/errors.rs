//! Which errors an option is about: `retry_for` and `no_retry_for` name them by kinds and by patterns.

use proc_macro2::{Span, TokenStream as Tokens};
use quote::quote;
use syn::parse::ParseStream;
use syn::{Expr, LitStr, Pat, Token};

const LONGEST_KIND: usize = 100;

/// Which errors: by their kinds, and by patterns.
#[derive(Default)]
pub(crate) struct Errors {
    pub(crate) kinds: Vec<LitStr>,
    /// Each as `matches!` takes it.
    pub(crate) patterns: Vec<Tokens>,
}

pub(crate) fn errors(inside: ParseStream, name: Span) -> syn::Result<Errors> {
    let mut errors = Errors::default();
    while !inside.is_empty() {
        if inside.peek(LitStr) {
            let kind: LitStr = inside.parse()?;
            check_kind(&kind)?;
            errors.kinds.push(kind);
        } else {
            let pattern = Pat::parse_multi_with_leading_vert(inside)?;
            let guard = if inside.peek(Token![if]) {
                Some((inside.parse::<Token![if]>()?, inside.parse::<Expr>()?))
            } else {
                None
            };
            let (token, condition) = guard.unzip();
            errors.patterns.push(quote!(#pattern #token #condition));
        }
        if !inside.is_empty() {
            inside.parse::<Token![,]>()?;
        }
    }
    if errors.kinds.is_empty() && errors.patterns.is_empty() {
        return Err(syn::Error::new(
            name,
            "name kinds of errors, such as \"http.503\", or patterns, such as PayError::Timeout(..)",
        ));
    }
    Ok(errors)
}

/// Refuses what cannot be a kind.
pub(crate) fn check_kind(kind: &LitStr) -> syn::Result<()> {
    let text = kind.value();
    let ok = (1..=LONGEST_KIND).contains(&text.len()) && !text.contains(|c: char| c.is_whitespace() || c.is_control());
    let why = || format!("a kind is a name of 1 to {LONGEST_KIND} bytes without spaces, such as \"http.503\"");
    if ok { Ok(()) } else { Err(syn::Error::new(kind.span(), why())) }
}
