/**
 * Token rules of programming languages: for each a list of rules, tried in order at each position.
 * No rule can look back or nest, so each takes linear time.
 */

const words = (text) => new Set(text.trim().split(/\s+/));

const NUMBER = /(?:0[xXbBoO][\da-fA-F_]+|\d[\d_]*(?:\.[\d_]+)?(?:[eE][+-]?\d+)?)[a-zA-Z]?\w*/y;
const DOUBLE = /"(?:[^"\\\n]|\\[^])*(?:"|$|(?=\n))/y;
const SINGLE = /'(?:[^'\\\n]|\\[^])*(?:'|$|(?=\n))/y;
const NAME = /[\p{L}_$][\p{L}\p{N}_$]*/uy;
const SLASHES = /\/\/[^\n]*/y;
const BLOCK = /\/\*[^]*?(?:\*\/|$)/y;
const HASH = /#[^\n]*/y;

const PYTHON = {
  rules: [
    ["comment", HASH],
    ["string", /[rRbBfFuU]{0,2}"""[^]*?(?:"""|$)/y],
    ["string", /[rRbBfFuU]{0,2}'''[^]*?(?:'''|$)/y],
    ["string", /[rRbBfFuU]{0,2}"(?:[^"\\\n]|\\[^])*(?:"|$|(?=\n))/y],
    ["string", /[rRbBfFuU]{0,2}'(?:[^'\\\n]|\\[^])*(?:'|$|(?=\n))/y],
    ["meta", /@[\p{L}_][\p{L}\p{N}_.]*/uy],
    ["number", NUMBER],
    ["name", NAME],
  ],
  keywords: words(`and as assert async await break case class continue def del elif else except finally
    for from global if import in is lambda match nonlocal not or pass raise return try while with yield`),
  constants: words("True False None self cls"),
  builtins: words(`abs all any bool bytes dict enumerate filter float format frozenset getattr hasattr int
    isinstance iter len list map max min next object open print range repr reversed round set setattr
    sorted str sum super tuple type zip Exception ValueError TypeError KeyError IndexError`),
};

const cLike = (keywords, constants, more = []) => ({
  rules: [
    ["comment", SLASHES], ["comment", BLOCK], ...more,
    ["string", DOUBLE], ["string", SINGLE], ["number", NUMBER], ["name", NAME],
  ],
  keywords: words(keywords),
  constants: words(constants),
  builtins: new Set(),
});

const JAVASCRIPT = cLike(
  `async await break case catch class const continue debugger default delete do else export extends
   finally for from function if import in instanceof let new of return static switch throw try typeof
   var void while yield interface type enum implements readonly private public protected as`,
  "true false null undefined this super NaN Infinity",
  [["string", /`(?:[^`\\]|\\[^])*(?:`|$)/y]],
);
const C = cLike(
  `alignas auto bool break case catch char class const constexpr continue default delete do double else
   enum explicit extern float for friend goto if inline int long namespace new noexcept operator private
   protected public return short signed sizeof static struct switch template this throw try typedef
   typename union unsigned using virtual void volatile while`,
  "true false nullptr NULL",
  [["meta", /#[ \t]*[a-z]+[^\n]*/y]],
);
const JAVA = cLike(
  `abstract assert boolean break byte case catch char class continue default do double else enum extends
   final finally float for if implements import instanceof int interface long native new package private
   protected public record return short static super switch synchronized this throw throws try var void
   volatile while`,
  "true false null",
  [["meta", /@[A-Za-z_]\w*/y]],
);
const GO = cLike(
  `break case chan const continue default defer else fallthrough for func go goto if import interface map
   package range return select struct switch type var`,
  "true false nil iota",
  [["string", /`[^`]*(?:`|$)/y]],
);
const RUST = cLike(
  `as async await break const continue crate dyn else enum extern fn for if impl in let loop match mod
   move mut pub ref return static struct super trait type unsafe use where while`,
  "true false self Self None Some Ok Err",
  [["meta", /#!?\[[^\]\n]*\]/y], ["constant", /'[a-z_]\w*(?!')/y]],
);
const JSON_RULES = {
  rules: [
    ["property", /"(?:[^"\\\n]|\\.)*"(?=[ \t]*:)/y],
    ["string", DOUBLE], ["number", /-?\d[\d.]*(?:[eE][+-]?\d+)?/y], ["name", NAME],
  ],
  keywords: new Set(), constants: words("true false null"), builtins: new Set(),
};
const SHELL = {
  rules: [
    ["comment", HASH], ["string", /"(?:[^"\\]|\\[^])*(?:"|$)/y], ["string", /'[^']*(?:'|$)/y],
    ["constant", /\$(?:\w+|\{[^}\n]*\}|[@*#?$!-])/y], ["meta", /--?[A-Za-z][\w-]*/y], ["number", /\b\d+\b/y],
    ["name", /[\w./-]+/y],
  ],
  keywords: words("if then else elif fi for in do done while until case esac function return export local set"),
  constants: new Set(),
  builtins: words("cd echo cat ls grep sed awk python python3 pip pytest make git assay docker curl rm cp mv mkdir"),
};
const SQL = {
  rules: [
    ["comment", /--[^\n]*/y], ["comment", BLOCK], ["string", SINGLE], ["property", DOUBLE],
    ["number", NUMBER], ["name", NAME],
  ],
  keywords: words(`select from where group by order having limit offset join left right inner outer full on
    as and or not in is between like insert into values update set delete create table index view drop
    alter add primary key foreign references distinct union all case when then else end with over partition`),
  constants: words("null true false"), builtins: words("count sum avg min max coalesce cast"), fold: true,
};
const CONFIG = {
  rules: [
    ["comment", HASH], ["meta", /^\[[^\]\n]*\]+/my], ["property", /[\w.-]+(?=[ \t]*[:=])/y],
    ["string", DOUBLE], ["string", SINGLE], ["number", NUMBER], ["name", NAME],
  ],
  keywords: new Set(), constants: words("true false null yes no on off"), builtins: new Set(),
};

/** By the name after a code fence, or the suffix of a file name. */
export const LANGUAGES = {
  python: PYTHON, py: PYTHON, python3: PYTHON, ipython: PYTHON, pyi: PYTHON,
  javascript: JAVASCRIPT, js: JAVASCRIPT, mjs: JAVASCRIPT, jsx: JAVASCRIPT,
  typescript: JAVASCRIPT, ts: JAVASCRIPT, tsx: JAVASCRIPT,
  c: C, h: C, cpp: C, "c++": C, cc: C, hpp: C, java: JAVA, go: GO, rust: RUST, rs: RUST,
  json: JSON_RULES, jsonl: JSON_RULES, ipynb: JSON_RULES,
  bash: SHELL, sh: SHELL, shell: SHELL, console: SHELL, zsh: SHELL,
  sql: SQL, toml: CONFIG, yaml: CONFIG, yml: CONFIG, ini: CONFIG,
};

const NAMES = {
  python: "Python", py: "Python", python3: "Python", javascript: "JavaScript", js: "JavaScript",
  typescript: "TypeScript", ts: "TypeScript", cpp: "C++", "c++": "C++", c: "C", java: "Java", go: "Go",
  rust: "Rust", rs: "Rust", json: "JSON", bash: "Shell", sh: "Shell", shell: "Shell", console: "Terminal",
  sql: "SQL", toml: "TOML", yaml: "YAML", yml: "YAML", diff: "Diff", html: "HTML", css: "CSS",
};

export const languageName = (name) => NAMES[name.toLowerCase()] ?? (name || "Text");
