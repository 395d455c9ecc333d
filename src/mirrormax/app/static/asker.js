// The worker that asks the server; its name is the path that it asks.

import { post } from "./api.js";
import { answering } from "./courier.js";

answering((question) => post(self.name, question));
