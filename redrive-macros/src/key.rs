//! The key of a call: a text with expressions over the arguments in braces, as in `format!`.

use std::str::Chars;

use proc_macro2::TokenStream as Tokens;
use quote::{quote, quote_spanned};
use syn::parse::ParseStream;
use syn::{Expr, Ident, LitStr};

/// `"pay-{order.id}"`, or `none`.
pub(crate) fn key(input: ParseStream) -> syn::Result<Tokens> {
    let why = "a text with expressions in braces, such as \"pay-{order.id}\", or `none`; \
               without this option, the key is made of method and arguments";
    if input.peek(Ident) {
        let said: Ident = input.parse()?;
        return if said == "none" { Ok(quote!(::redrive::Key::None)) } else { Err(syn::Error::new(said.span(), why)) };
    }
    let text: LitStr = input.parse().map_err(|e: syn::Error| syn::Error::new(e.span(), why))?;
    let Template { format, expressions } = Template::read(&text)?;
    if format.is_empty() {
        return Err(syn::Error::new(text.span(), why));
    }
    let format = LitStr::new(&format, text.span());
    Ok(quote_spanned!(text.span()=> ::redrive::Key::Given(::std::format!(#format, #(#expressions),*))))
}

/// A text with expressions in braces, as `format!` takes it: the expressions apart.
struct Template {
    format: String,
    expressions: Vec<Expr>,
}

impl Template {
    fn read(literal: &LitStr) -> syn::Result<Self> {
        let refuse = |why: &str| syn::Error::new(literal.span(), why);
        let mut template = Self { format: String::new(), expressions: Vec::new() };
        let text = literal.value();
        let mut chars = text.chars();
        while let Some(c) = chars.next() {
            let doubled = chars.as_str().starts_with(c);
            match c {
                '{' | '}' if doubled => {
                    template.format.extend([c, c]);
                    chars.next();
                }
                '{' => {
                    let unclosed = || refuse("a `{` is not closed; for a brace in the key write `{{`");
                    let inside = up_to_closing(&mut chars).ok_or_else(unclosed)?;
                    template.expressions.push(expression(&inside, literal)?);
                    template.format.push_str("{}");
                }
                '}' => return Err(refuse("a `}` has no `{` before it; for a brace in the key write `}}`")),
                _ => template.format.push(c),
            }
        }
        Ok(template)
    }
}

/// All before the brace that closes one opened just before.
fn up_to_closing(chars: &mut Chars<'_>) -> Option<String> {
    let (mut inside, mut open) = (String::new(), 1);
    for c in chars {
        match c {
            '{' => open += 1,
            '}' => open -= 1,
            _ => {}
        }
        if open == 0 {
            return Some(inside);
        }
        inside.push(c);
    }
    None
}

fn expression(text: &str, literal: &LitStr) -> syn::Result<Expr> {
    LitStr::new(text, literal.span()).parse().map_err(|e| {
        let why = format!("`{{{text}}}` is not an expression over the arguments, such as `{{order.id}}`: {e}");
        syn::Error::new(literal.span(), why)
    })
}
