// Tells what the runner of node:test found, one line of JSON per test. Runs in the parent process;
// the tests run in children, whose output cannot get into this stream.
const LONGEST = 8000;

const text = (value) => String(value ?? '').slice(0, LONGEST);

const account = (error) => {
  if (!error) return {};
  // The runner wraps what a test threw.
  const thrown = error.cause instanceof Error ? error.cause : error;
  return {
    message: text(thrown.message ?? error.message),
    detail: text(thrown.stack ?? thrown.message ?? thrown),
    kind: text(error.failureType),
  };
};

export default async function* report(source) {
  const groups = new Map();
  for await (const { type, data } of source) {
    if (type === 'test:start') {
      const open = groups.get(data.file) ?? [];
      open.length = data.nesting;
      open[data.nesting] = data.name;
      groups.set(data.file, open);
      continue;
    }
    if (type !== 'test:pass' && type !== 'test:fail') continue;
    const titles = [...(groups.get(data.file) ?? []).slice(0, data.nesting), data.name];
    yield `${JSON.stringify({
      file: text(data.file),
      titles: titles.map(text),
      passed: type === 'test:pass',
      skipped: data.skip !== undefined && data.skip !== false,
      todo: data.todo !== undefined && data.todo !== false,
      group: data.details?.type === 'suite',
      ...account(data.details?.error),
    })}\n`;
  }
  yield '{"end":true}\n';
}
