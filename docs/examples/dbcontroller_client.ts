// A client of db-controller for TypeScript: calls that are repeated until their outcome is known, watches that go on, errors as classes.
//
// It uses the API as HTTPS and JSON (serve --http-api), by fetch alone: Node 20, Deno or Bun. NODE_EXTRA_CA_CERTS names the authority of the server.

/** A body whose type is not given. */
export type Body = Record<string, unknown>;

/** A resource. 64-bit numbers are strings, as in every JSON of protobuf; T is the type of its body. */
export interface Resource<T = Body> {
  name: string;
  deployment?: string;
  kind?: string;
  uid?: string;
  revision?: string;
  generation?: string;
  state?: "STATE_ACTIVE" | "STATE_DELETING";
  labels?: Record<string, string>;
  body?: T;
  status?: Record<string, unknown>;
  ownerReferences?: { kind: string; name: string; uid?: string }[];
  conditions?: { type: string; message: string }[];
  createTime?: string;
  updateTime?: string;
  deleteTime?: string;
  purgeTime?: string;
}

/** An event of a watch. The token, where there is one, continues behind this event. */
export type Event<T> =
  | { type: "begin" } // a snapshot begins
  | { type: "upsert" | "delete"; resource: Resource<T>; token?: string }
  | { type: "end"; token?: string }; // the snapshot is complete: each resource that it did not have is gone

/** A call that failed. The outcome of a write that failed with no subclass of Refused is not known. */
export class DbControllerError extends Error {
  constructor(
    readonly code: number, // of gRPC
    message: string,
    readonly reason = "", // such as BLOCKED, of the table in docs/guarantees.md
    readonly metadata: Record<string, string> = {},
  ) {
    super(message);
    this.name = new.target.name;
  }
}

/** The call is refused, and never takes effect. Repeat it with a new request id, after its reason has gone. */
export class Refused extends DbControllerError {}
/** The request is invalid; the message names the field. */
export class Invalid extends Refused {}
/** There is no resource of this name, or it has another uid. */
export class NotFound extends Refused {}
/** A resource of this name exists. */
export class AlreadyExists extends Refused {}
/** The caller has no right to do this. */
export class Denied extends Refused {}
/** A delete: others refer to the resource; the message names them. */
export class Blocked extends Refused {}
/** A watch or a list cannot go on from its token. */
export class Reset extends Refused {}

const refused: Record<number, typeof Refused> = { 3: Invalid, 5: NotFound, 6: AlreadyExists, 7: Denied, 9: Refused, 11: Reset, 12: Refused, 16: Denied };
const deadlineExceeded = 4;

interface Status {
  code?: number;
  message?: string;
  details?: { "@type"?: string; reason?: string; metadata?: Record<string, string> }[];
}

function errorOf(status: Status): DbControllerError {
  const info = status.details?.find((d) => d["@type"]?.endsWith("/google.rpc.ErrorInfo"));
  const code = status.code ?? 2;
  const kind = info?.reason === "BLOCKED" ? Blocked : (refused[code] ?? DbControllerError);
  return new kind(code, status.message ?? "", info?.reason, info?.metadata);
}

/** The error of a connection that failed is code 14, UNAVAILABLE. */
const away = (failed: unknown) => new DbControllerError(14, String((failed as Error).cause ?? failed));

const sleep = (ms: number) => new Promise((done) => setTimeout(done, ms * (0.5 + Math.random() / 2)));
const path = (name: string) => "/v1/resources/" + name.split("/").map(encodeURIComponent).join("/");

interface Change<T> {
  upsert?: Resource<T>;
  delete?: Resource<T>;
  resumeToken?: string;
}

/** A line of a watch: an error, several changes, one change, or the end of the snapshot. */
interface Line<T> {
  error?: Status;
  result?: Change<T> & { changes?: Change<T>[]; endOfSnapshot?: { resumeToken?: string }; bookmark?: { resumeToken?: string } };
}

/** Calls one deployment: api is https://host:port, token returns the caller's token. Each call is repeated for at most `within` milliseconds. */
export class Client {
  constructor(
    private readonly api: string,
    private readonly token: () => string,
    private readonly within = 60_000,
  ) {}

  get<T = Body>(name: string, latest = false): Promise<Resource<T>> {
    return this.call("GET", path(name), { latest: String(latest) });
  }

  /** Creates a resource, or replaces its body and labels; only the one with this revision, if it is given. */
  put<T = Body>(name: string, body: T, only: { labels?: Record<string, string>; revision?: string } = {}): Promise<Resource<T>> {
    return this.call("PUT", path(name), { requestId: crypto.randomUUID() }, { body, ...only });
  }

  /** Deletes a resource. The answer says whether it is removed, or in DELETING. */
  delete(name: string, uid = ""): Promise<{ removed?: boolean; resource?: Resource }> {
    return this.call("DELETE", path(name), { uid, requestId: crypto.randomUUID() });
  }

  /** Yields the resources of a kind, page by page. */
  async *list<T = Body>(kind = "", filter = ""): AsyncGenerator<Resource<T>> {
    for (let pageToken: string | undefined = ""; pageToken !== undefined; ) {
      const page: { resources?: Resource<T>[]; nextPageToken?: string } = await this.call("GET", "/v1/resources", { kind, filter, pageToken, pageSize: "1000" });
      for (const r of page.resources ?? []) yield r;
      pageToken = page.nextPageToken || undefined;
    }
  }

  /** Yields events for ever. It goes on from the last token after a failure, and begins again where that cannot be resumed. */
  async *watch<T = Body>(kind = "", filter = "", token = ""): AsyncGenerator<Event<T>> {
    for (let pause = 50; ; pause = Math.min(2 * pause, 2000)) {
      if (!token) yield { type: "begin" };
      try {
        for await (const line of this.lines<T>({ kind, filter, resumeToken: token, allowBatches: "true" })) {
          if (line.error) throw errorOf(line.error);
          pause = 50;
          const result = line.result ?? {};
          if (result.endOfSnapshot) {
            token = result.endOfSnapshot.resumeToken || token;
            yield { type: "end", token };
          }
          token = result.bookmark?.resumeToken || token;
          for (const c of result.changes ?? [result]) {
            token = c.resumeToken || token;
            if (c.upsert) yield { type: "upsert", resource: c.upsert, token: c.resumeToken };
            if (c.delete) yield { type: "delete", resource: c.delete, token: c.resumeToken };
          }
          token = result.resumeToken || token;
        }
      } catch (failed) {
        if (failed instanceof Reset) token = "";
        else if (failed instanceof Refused) throw failed;
      }
      await sleep(pause);
    }
  }

  /** Calls a method, and repeats the call until it is answered or refused: a request id takes effect once, however often it is repeated. */
  async call<A>(method: string, at: string, query: Record<string, string> = {}, body?: unknown): Promise<A> {
    const end = Date.now() + this.within;
    for (let pause = 50, limit = 10_000; ; pause = Math.min(2 * pause, 2000)) {
      let error: DbControllerError;
      const budget = Math.max(1, Math.min(limit, end - Date.now()));
      const silent = new AbortController(); // the server ends the call before, if it can
      const timer = setTimeout(() => silent.abort(new Error("no answer")), budget + 1000);
      try {
        const answer = await this.send(method, at, query, body, { ms: budget, signal: silent.signal });
        const read = (await answer.json()) as A & Status;
        if (answer.ok) return read;
        error = errorOf(read);
      } catch (failed) {
        error = away(failed);
      } finally {
        clearTimeout(timer);
      }
      if (error instanceof Refused || Date.now() + pause > end) throw error;
      if (error.code === deadlineExceeded) limit *= 2; // a large write may need more
      await sleep(pause);
    }
  }

  private send(method: string, at: string, query: Record<string, string>, body?: unknown, limit?: { ms: number; signal: AbortSignal }): Promise<Response> {
    const set = Object.entries(query).filter(([, value]) => value !== "");
    return fetch(`${this.api}${at}?${new URLSearchParams(set)}`, {
      method,
      headers: { Authorization: `Bearer ${this.token()}`, ...(limit && { "Grpc-Timeout": `${limit.ms}m` }) },
      body: body === undefined ? undefined : JSON.stringify(body),
      signal: limit?.signal,
    });
  }

  private async *lines<T>(query: Record<string, string>): AsyncGenerator<Line<T>> {
    const answer = await this.send("GET", "/v1/resources:watch", query);
    if (!answer.ok || !answer.body) throw errorOf((await answer.json()) as Status);
    const reader = answer.body.getReader();
    const decoder = new TextDecoder();
    try {
      for (let rest = ""; ; ) {
        const { done, value } = await reader.read();
        if (done) return;
        const lines = (rest + decoder.decode(value, { stream: true })).split("\n");
        rest = lines.pop() ?? "";
        for (const line of lines) if (line) yield JSON.parse(line) as Line<T>;
      }
    } finally {
      await reader.cancel().catch(() => undefined); // the loop may have ended with the connection
    }
  }
}
