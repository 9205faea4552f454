// Joins the room, sends what the user types and lists the messages it receives.
document.addEventListener("DOMContentLoaded", () => {
  const find = (id) => document.getElementById(id);
  const show = (state) => (find("state").textContent = state);
  const room = ActionCable.createConsumer().subscriptions.create("RoomChannel", {
    connected: () => show("connected"),
    disconnected: () => show("not connected"),
    received: ({ text }) => {
      if (!text) return;
      const line = document.createElement("li");
      line.textContent = text;
      find("heard").append(line);
    },
  });
  find("say").addEventListener("submit", (event) => {
    event.preventDefault();
    room.perform("say", { text: find("text").value });
  });
});
